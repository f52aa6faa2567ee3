"""However a model is cut and called, every seam has the same bytes and every token is the same."""

from contextlib import ExitStack, closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_files import write_model
from meshnet_node.backends.reference import ReferenceBackend
from meshnet_node.backends.reference.tiny import write_tiny_llama
from meshnet_node.pin import cut
from naive import GEMMA_LAYERS, GEMMA_VOCABULARY, write_gemma3

LAYERS = {"llama": 4, "gemma3": GEMMA_LAYERS, "split set": 3}
VOCABULARY = GEMMA_VOCABULARY  # the smallest of the three


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "llama": [write_tiny_llama(folder / "llama.gguf")],
        "gemma3": [write_gemma3(folder / "gemma3.gguf")],
        "split set": write_model(folder / "set.gguf", layers=3, parts_of_tensors=9),
    }


@pytest.fixture(scope="module")
def shards(files, tmp_path_factory):
    """`shards(model, start, end, cut)`: loaded once each, from the whole or from a cut of it."""
    folder, loaded = tmp_path_factory.mktemp("cuts"), {}

    def get(model, start, end, from_cut):
        key = (model, start, end, from_cut)
        if key not in loaded:
            sources = files[model]
            if from_cut:
                sources = [folder / f"{model}-{start}-{end}.gguf"]
                cut(files[model], layers=(start, end), destination=sources[0], cache=False)
            loaded[key] = ReferenceBackend().load(sources, start=start, end=end, device="cpu")
        return loaded[key]

    return get


@st.composite
def routes(draw):
    """A model, the hops of a route with what each holds (more than it computes), and calls."""
    model = draw(st.sampled_from(sorted(LAYERS)))
    layers = LAYERS[model]
    seams = sorted(draw(st.sets(st.integers(1, layers - 1), min_size=1)))
    hops = []
    for start, end in zip([0, *seams], [*seams, layers], strict=True):
        held = (draw(st.integers(0, start)), draw(st.integers(end, layers)))
        hops.append((start, end, *held, draw(st.booleans())))
    calls = draw(
        st.lists(
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5), min_size=1, max_size=3
        )
    )
    return model, hops, calls


@settings(max_examples=60)
@given(route=routes())
def test_a_route_gives_what_the_whole_model_gives(shards, route):
    model, hops, calls = route
    whole = shards(model, 0, LAYERS[model], False)
    with ExitStack() as stack:

        def slot(shard, start, end):
            return stack.enter_context(closing(shard.open(start, end)))

        reference = slot(whole, 0, LAYERS[model])
        prefixes = [slot(whole, 0, end) for _, end, *_ in hops[:-1]]
        chain = [slot(shards(model, *held), start, end) for start, end, *held in hops]
        # The prompt in pieces, then two tokens of the model's own.
        pending = [tuple(call) for call in calls]
        generated = 0
        while pending:
            ids = pending.pop(0)
            step = chain[0].forward_tokens(ids, sample=False)
            for prefix, hop in zip(prefixes, chain[1:], strict=True):
                assert step.activations == prefix.forward_tokens(ids, sample=False).activations
                step = hop.forward_activations(step.activations, sample=True)
            expected = reference.forward_tokens(ids, sample=True)
            assert bytes(step.logits) == bytes(expected.logits)
            assert step.token == expected.token
            assert step.activations == b""
            if not pending and generated < 2:
                generated += 1
                pending.append((step.token,))
