"""Watch the numbers inside a neural network while it trains, on one rank or ten thousand.

Each room has its own face: `rankscope.agent` measures, `rankscope.collector` receives,
`rankscope.store` keeps, `rankscope.viewer` shows. Nothing is imported here, so that a training
job that loads the agent loads no more than the agent.
"""
