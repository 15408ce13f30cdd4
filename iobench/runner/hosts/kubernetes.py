"""The objects of Kubernetes that start one iobench process on each of several nodes."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence

from .launch import FIRST_PORT

_RESULTS = "/results"

_TEMPLATE = """\
# One pod on each of @HOSTS nodes, which measure one job together.
#   kubectl replace --force -f job.yaml     # also where an earlier one is still there
#   kubectl logs --follow job/iobench
# Change: image (deploy/Dockerfile makes it), cpu and memory (of a node), and the claims of the
# volumes "data" and "results".
apiVersion: v1
kind: Service
metadata:
  name: iobench
spec:
  clusterIP: None # the pods find each other by name: iobench-0.iobench
  publishNotReadyAddresses: true
  selector:
    app: iobench
---
apiVersion: batch/v1
kind: Job
metadata:
  name: iobench
spec:
  completionMode: Indexed
  completions: @HOSTS # hosts
  parallelism: @HOSTS # hosts
  backoffLimit: 0 # a run that lost a host has failed, and does not go on by itself
  template:
    metadata:
      labels:
        app: iobench
    spec:
      subdomain: iobench
      restartPolicy: Never
      affinity:
        podAntiAffinity: # one pod on each node
          requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app: iobench
      containers:
        - name: iobench
          image: iobench
          args:
@WORDS
          env:
            - name: IOBENCH_HOSTS
              value: "@HOSTS" # hosts
            - name: MASTER_ADDR
              value: iobench-0.iobench
            - name: MASTER_PORT
              value: "@PORT"
          resources:
            requests:
              cpu: "16"
              memory: 64Gi
            limits:
              memory: 64Gi # the page cache counts, too: it is emptied where this ends
          volumeMounts:
            - name: data
              mountPath: @DATA
            - name: results
              mountPath: @RESULTS
            - name: memory
              mountPath: /dev/shm
      volumes:
        - name: data
          persistentVolumeClaim:
            claimName: data
        - name: results
          persistentVolumeClaim:
            claimName: results
        - name: memory # batches lie in it, between a loader's workers and its rank
          emptyDir:
            medium: Memory
            sizeLimit: 16Gi
"""


def manifest(hosts: int, words: Sequence[str]) -> str:
    """A Service and an Indexed Job for ``iobench WORDS`` on so many nodes, as YAML.

    The volume "data" is mounted where the first place of the command lies, and the results are
    written to a volume of their own, unless the command names another place for them.
    """
    words = list(words)
    results = _value(words, "--results")
    place = next((value for value in _values(words) if value != results), "/data/")
    data = posixpath.dirname(place.rstrip("/"))
    if results is None and words[:1] and words[0] in _RECORDS:
        words += ["--results", _RESULTS]
    filled = {
        "HOSTS": str(hosts),
        "PORT": str(FIRST_PORT),
        # A text of JSON is one of YAML as well, whatever is in it.
        "WORDS": "\n".join(f"            - {json.dumps(word)}" for word in words),
        "DATA": json.dumps(data if len(data) > 1 else place.rstrip("/")),
        "RESULTS": json.dumps(results if results and results[:1] == "/" else _RESULTS),
    }
    before, *parts = _TEMPLATE.split("@")
    for part in parts:
        name = next(each for each in filled if part.startswith(each))
        before += filled[name] + part[len(name) :]
    return before


_RECORDS = ("run", "train", "checkpoint", "sweep", "ab", "check", "advise")
"""Verbs that write results."""


def _value(words: Sequence[str], flag: str) -> str | None:
    for at, word in enumerate(words):
        if word == flag and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _values(words: Sequence[str]) -> list[str]:
    """The paths of the command: places that all pods have to see."""
    values = (word.partition("=")[2] if word[:2] == "--" else word for word in words)
    return [value for value in values if value[:1] == "/" and len(value) > 1]
