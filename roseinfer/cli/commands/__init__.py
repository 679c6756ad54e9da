"""One file per subcommand of `roseinfer`."""
