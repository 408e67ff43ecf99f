"""``python -m tuili`` is the ``tuili`` program."""

from tuili.cli.main import main

main()
