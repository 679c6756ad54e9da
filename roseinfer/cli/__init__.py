"""The command `roseinfer`, and what its subcommands share."""
