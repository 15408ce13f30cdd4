python - <<'END'
import os, subprocess, sys, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

hosts = @NAMES
words = @WORDS

@ray.remote(num_cpus=0, max_retries=0)
def start(index):
    host = {"@INDEX": str(index), "@HOSTS": str(len(hosts))}
    return subprocess.call(words, env=os.environ | host | @JOB)

ray.init(address="auto")
keys = "NodeManagerHostname", "NodeManagerAddress", "NodeName"
nodes = {node[key]: node["NodeID"] for node in ray.nodes() if node["Alive"] for key in keys}
places = [On(nodes[name], soft=False) for name in hosts]
started = [start.options(scheduling_strategy=on).remote(n) for n, on in enumerate(places)]
sys.exit(max(abs(code) for code in ray.get(started)))
END
