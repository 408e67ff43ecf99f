"""The list of models."""

from tuili.dialects.openai.wire import Model, ModelList


def model(name: str, created: int, max_model_len: int) -> Model:
    """``created``: Unix time of loading, in seconds; ``max_model_len`` (vLLM's extra field): prompt and answer, in tokens."""
    return Model(name, created, max_model_len)


def model_list(models: list[Model]) -> ModelList:
    return ModelList(models)
