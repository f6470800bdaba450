"""What gating costs and saves: the window of recent traffic, the break-even point, the bypass.

Knows no upstream and no storage. `calibrators` and the layers above it may import it.
"""
