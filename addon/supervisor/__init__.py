"""`toolgraft serve --workers N`: one supervisor and its proxy processes, which share their ports.

A *slot* is the place of one process. Its listening sockets belong to the supervisor and outlive the process, so that
connections wait for the slot's next process instead of being refused. Standard library only.
"""
