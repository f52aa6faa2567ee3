"""The made-up model that the story is about: its artifact, its recipe, and one recipe off by an axis."""

from msgspec import structs

from meshnet_cli.scripted import digest
from meshnet_node.recipe_identity import ArtifactIdentity, RuntimeRecipe, ShardIdentity

LAYERS = 28
MIDDLE = 14


ARTIFACT = ArtifactIdentity(
    artifact_id="example/tale-28",
    revision="9f1c2ab04e7d55c3b8a6f01d2e3c4b5a69788796",
    content_digest=digest("weights of tale-28"),
    architecture="llama",
    architecture_digest=digest("architecture of tale-28"),
    layer_count=LAYERS,
)
RECIPE = RuntimeRecipe(
    weight_quantization="Q4_K:112,Q6_K:57",
    activation_dtype="bfloat16",
    compute_dtype="float32",
    kv_dtype="fp8_e4m3",
    kv_layout="uniform-512",
    tokenizer_revision=digest("tokenizer of tale-28"),
    architecture_adapter="llama",
    backend_id="demo-script",
    runtime_version="1.0.0",
    recipe_id="tale-dense",
    recipe_version="1",
    catalogue_version="1",
)
OTHER_LAYOUT = structs.replace(RECIPE, kv_layout="padded-584")
"""Both sides say fp8_e4m3 for the KV cache; the bytes per token differ."""


def shard(start: int, end: int, recipe: RuntimeRecipe = RECIPE) -> ShardIdentity:
    """Layers `[start, end)` of the model under `recipe`."""
    return ShardIdentity(artifact=ARTIFACT, recipe=recipe, shard_start=start, shard_end=end)
