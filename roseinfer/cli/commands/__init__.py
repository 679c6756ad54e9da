"""A file a subcommand of `roseinfer`."""
