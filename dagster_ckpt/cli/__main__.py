"""``python -m dagster_ckpt.cli``: the program where its entry point is not on the path."""

from dagster_ckpt.cli.app import main

main(prog_name="dagster-ckpt")
