# MLPerf Storage v3.0, @DIVISION: @WORKLOAD, @RANKS on @CLIENTS.
# These names are yours:
ORG=organisation SYSTEM=system RESULTS=/srv/mlperf-results
HOSTS=@HOSTS
DATA=@DATA
FILES=@FILES  # @SIZE: @WHY, as in 3.1.2

mlpstorage init "$ORG" "$RESULTS"
mlpstorage @MODE training @MODEL datasize --accelerator-type @ACCELERATOR --max-accelerators @NUMBER --hosts "$HOSTS" --client-host-memory-in-gb @MEMORY --num-client-hosts @COUNT --results-dir "$RESULTS" --systemname "$SYSTEM"
mlpstorage @MODE training @MODEL datagen @PLACE --num-processes @NUMBER --hosts "$HOSTS" --data-dir "$DATA" --results-dir "$RESULTS" --systemname "$SYSTEM" --params dataset.num_files_train="$FILES"
for run in $(seq @RUNS); do
  mlpstorage @MODE training @MODEL run @PLACE --accelerator-type @ACCELERATOR --num-accelerators @NUMBER --hosts "$HOSTS" --client-host-memory-in-gb @MEMORY --num-client-hosts @COUNT --data-dir "$DATA" --results-dir "$RESULTS" --systemname "$SYSTEM" --params dataset.num_files_train="$FILES"@PARAMS
done
mlpstorage reports reportgen --results-dir "$RESULTS" --systemname "$SYSTEM"
@VALIDATE

# What its validation asks (Rules.md, edition 3.0):
#   2.1.7  a .yaml and a .pdf describe the system.
#   3.1.2  the runs have exactly the number of files of datasize; if that is not @FILES, take it.
@APART
#   3.3.2  utilization is at least @REQUIRED in each run.
#   3.3.6  each host has equally many accelerators: @EACH.
#   2.1.17 @RUNS runs one after the other; the first one warms up and is not counted.
#   3.6.2  no other parameter than those of the table differs.
