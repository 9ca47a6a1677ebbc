"""
Turn simulated failures into what real servers of a game day hold, and into how long the workbench's live path takes from fault to plan.

Nothing here is touched but servers that are named on the command line, in a cluster whose owner marked it for game days (`target`).
"""
