"""The `worldloom` command: `main`, and a file for each subcommand."""
