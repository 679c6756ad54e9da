"""The command `roseinfer`: a file a subcommand, and what they share."""
