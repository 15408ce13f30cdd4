"""DatasetSpec -> shards + manifest: parallel, seeded, resumable, never overwriting.

``plan`` decides everything (a pure function of the spec); ``writer`` makes one unit of work;
``pool`` runs units in several processes; ``journal`` records finished units; ``engine`` connects
them; ``cleaner`` removes a dataset.
"""
