"""The code that both shells around the delivery machine share.

Settings, routing, admission, receivers, settlement, and delivery memory. This folder may import
`engine.watching` and `engine.moving`. The shells are the subfolders: `threaded` for listeners, `loop` for
event loops.
"""
