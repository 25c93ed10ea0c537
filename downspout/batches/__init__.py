"""Batch transactions, as Storm's Trident has them: records in numbered batches, committed strictly in order.

``core`` decides: no I/O, no clock. ``stores`` holds the two ports, ``streams`` what travels between the components.
"""
