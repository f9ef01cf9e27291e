"""Random events within their bounds."""

from hypothesis import strategies as st

from app.accounting.events import (
    MIN_SHAPE,
    AdaptiveClipping,
    Composed,
    Decay,
    DiscreteGaussian,
    DiscreteLaplace,
    EpsilonDelta,
    Exponential,
    Gaussian,
    GroupPrivacy,
    Laplace,
    MixtureOfGaussians,
    PermuteAndFlip,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    SampledWithoutReplacement,
    SampledWithReplacement,
    SelfComposed,
    TreeAggregation,
    TruncatedPoissonSampled,
    Zcdp,
)

NOISE = st.floats(1e-3, 1e6)
PROBABILITY = st.floats(0, 1, exclude_min=True)
COUNT = st.integers(1, 10**9)
EPSILON = st.floats(0, 1e4, exclude_min=True)
LEAVES = st.one_of(
    st.builds(Gaussian, NOISE, st.sampled_from(["example", "microbatch"])),
    st.builds(Laplace, NOISE),
    st.builds(DiscreteGaussian, NOISE, st.none() | st.integers(1, 10**6)),
    st.builds(DiscreteLaplace, EPSILON, st.integers(1, 10**6)),
    st.builds(PermuteAndFlip, EPSILON),
    st.builds(
        MixtureOfGaussians,
        st.floats(1e-2, 1e6),
        st.lists(st.floats(0, 9), min_size=2, max_size=2).map(lambda some: (*some, 10.0)),
        st.sampled_from([(0.9, 0.09, 0.01), (0.0, 0.5, 0.5), (0.0, 0.0, 1.0), (1 - 1e-6, 0.0, 1e-6)]),
    ),
    st.builds(RandomizedResponse, PROBABILITY, st.integers(2, 10**9)),
    st.builds(Exponential, EPSILON),
    st.builds(Zcdp, st.floats(0, 1e6, exclude_min=True), st.floats(0, 1e6)),
    st.builds(EpsilonDelta, EPSILON, st.floats(0, 0.5, exclude_max=True)),
    st.builds(TreeAggregation, NOISE, st.lists(COUNT, min_size=1, max_size=3)),
    st.builds(AdaptiveClipping, NOISE),
    st.builds(AdaptiveClipping, gradient_noise_multiplier=NOISE, count_noise_stddev=NOISE),
    st.builds(
        Decay, st.just("time"), st.just(0.1), st.integers(1, 9), st.builds(Gaussian, st.floats(1, 9)), st.just(2)
    ),
)
EVENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(PoissonSampled, PROBABILITY, inner),
        st.builds(SampledWithoutReplacement, st.integers(100, 10**9), st.integers(1, 100), inner),
        st.builds(TruncatedPoissonSampled, COUNT, PROBABILITY, COUNT, inner),
        st.builds(SampledWithReplacement, st.integers(100, 10**9), st.integers(1, 200), inner),
        st.builds(Composed, st.lists(inner, min_size=1, max_size=3)),
        st.builds(SelfComposed, inner, COUNT),
        st.builds(RepeatAndSelect, inner, st.floats(1, 1e9), st.none() | st.floats(MIN_SHAPE, 1e6)),
        st.builds(GroupPrivacy, st.integers(1, 10**6), inner),
    ),
    max_leaves=6,
)
