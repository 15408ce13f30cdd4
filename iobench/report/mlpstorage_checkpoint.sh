# MLPerf Storage v3.0, @DIVISION: @MODEL, @RANKS on @CLIENTS.
# These names are yours:
ORG=organisation SYSTEM=system RESULTS=/srv/mlperf-results
HOSTS=@HOSTS
CHECKPOINTS=@TARGET

mlpstorage init "$ORG" "$RESULTS"
@RUNS
mlpstorage reports reportgen --results-dir "$RESULTS" --systemname "$SYSTEM"
mlpstorage validate "$RESULTS"

# What its validation asks (Rules.md, edition 3.0):
#   2.1.7  a .yaml and a .pdf describe the system.
#   4.3.1  @WRITTEN are written by each host, and @MULTIPLE x its memory are @CACHE:
#          @KEPT
#   4.3.4  @NEEDED hold @SIZE: @ACCELERATOR has @HELD each.
#   4.3.5  @MODEL is saved by @PROCESSES processes.
@APART
#   4.7.1  @SAVES saves and @SAVES restores, at most 30 s apart.
