"""Pictures and widgets of real runs: blocks, tables, one decode step, a stage while it decodes."""
