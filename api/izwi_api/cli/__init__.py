"""The command line: one file per command. Heavy imports are deferred, so `--help` is quick."""
