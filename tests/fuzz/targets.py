"""All fuzz targets by name: what reads bytes that anybody could have written, in our own process.

What is not fuzzed, and why:

- libhdf5 (h5py). Scan and verify look into HDF5 files in worker processes, because the library may
  end its process over a damaged one; its defects are its own. ``hdf5-heap`` is the part of a scan
  that reads such a file by itself.
- The index.json of MDS, which is compared byte for byte and never parsed.
- Listings of S3: botocore and obstore parse their XML.
- fsspec's and libnfs's protocols, which are spoken with a server.
- What loader libraries (litdata, datasets, streaming ...) read by themselves.
- Files of /proc and /sys, which the kernel writes.
"""

from __future__ import annotations

from tests.fuzz import checkpoints, datasets, documents
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {**documents.TARGETS, **datasets.TARGETS, **checkpoints.TARGETS}
