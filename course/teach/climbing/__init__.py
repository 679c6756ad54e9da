"""The climb: how fast each stage so far decodes the same small workload on this machine, measured once and kept."""
