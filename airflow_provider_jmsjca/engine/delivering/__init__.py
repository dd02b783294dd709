"""The code that both drivers of the delivery machine (`core.delivery`) share.

Settings, consumers, receivers, settlement, attempt log, and statistics. This folder may import
`engine.watching` and `engine.moving`. The drivers are in the subfolders: `threaded` for listeners, `loop` for
event loops.
"""
