"""What the axes of a device mesh are called along which ranks hold other parts of a model."""

TENSOR_PARALLEL = "tp"
PIPELINE_PARALLEL = "pp"
EXPERT_PARALLEL = "ep"
MODEL_AXES = (TENSOR_PARALLEL, PIPELINE_PARALLEL)
"""Along all others ranks see other samples, with other experts or without."""
