"""The parts that both shells around the delivery machine share.

Settings, routing, admission, receivers, settlement, and what was seen before. May import `engine.watching`
and `engine.moving`. The shells stand below: `threaded` for listeners, `loop` for event loops.
"""
