"""Many chats in one session, against what each of their turns truly was.

`python -m tests.simulation --chats 400 --seeds 1 2 3` prints a table; `test_simulation.py` asserts its figures.
"""
