"""`python -m ptegpu` is the command `ptegpu`."""

from .cli import main

main()
