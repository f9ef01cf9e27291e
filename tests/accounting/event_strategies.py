"""Random events within their bounds."""

from hypothesis import strategies as st

from app.accounting import events as dp

NOISE = st.floats(1e-3, 1e6)
PROBABILITY = st.floats(0, 1, exclude_min=True)
COUNT = st.integers(1, 10**9)
EPSILON = st.floats(0, 1e4, exclude_min=True)
LEAVES = st.one_of(
    st.builds(dp.Gaussian, NOISE, st.sampled_from(["example", "microbatch"])),
    st.builds(dp.Laplace, NOISE),
    st.builds(dp.DiscreteGaussian, NOISE, st.none() | st.integers(1, 10**6)),
    st.builds(dp.DiscreteLaplace, EPSILON, st.integers(1, 10**6)),
    st.builds(dp.PermuteAndFlip, EPSILON),
    st.builds(
        dp.MixtureOfGaussians,
        st.floats(1e-2, 1e6),
        st.lists(st.floats(0, 9), min_size=2, max_size=2).map(lambda some: (*some, 10.0)),
        st.sampled_from([(0.9, 0.09, 0.01), (0.0, 0.5, 0.5), (0.0, 0.0, 1.0), (1 - 1e-6, 0.0, 1e-6)]),
    ),
    st.builds(dp.RandomizedResponse, PROBABILITY, st.integers(2, 10**9)),
    st.builds(dp.Exponential, EPSILON),
    st.builds(dp.Zcdp, st.floats(0, 1e6, exclude_min=True), st.floats(0, 1e6), st.floats(0, 0.5, exclude_max=True)),
    st.builds(dp.EpsilonDelta, EPSILON, st.floats(0, 0.5, exclude_max=True)),
    st.builds(dp.TreeAggregation, NOISE, st.lists(COUNT, min_size=1, max_size=3)),
    st.builds(dp.AdaptiveClipping, NOISE),
    st.builds(dp.AdaptiveClipping, gradient_noise_multiplier=NOISE, count_noise_stddev=NOISE),
    st.builds(
        dp.Decay, st.just("time"), st.just(0.1), st.integers(1, 9), st.builds(dp.Gaussian, st.floats(1, 9)), st.just(2)
    ),
)
EVENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(dp.PoissonSampled, PROBABILITY, inner),
        st.builds(dp.SampledWithoutReplacement, st.integers(100, 10**9), st.integers(1, 100), inner),
        st.builds(dp.TruncatedPoissonSampled, COUNT, PROBABILITY, COUNT, inner),
        st.builds(dp.SampledWithReplacement, st.integers(100, 10**9), st.integers(1, 200), inner),
        st.builds(dp.Composed, st.lists(inner, min_size=1, max_size=3)),
        st.builds(dp.SelfComposed, inner, COUNT),
        st.builds(dp.RepeatAndSelect, inner, st.floats(1, 1e9), st.none() | st.floats(dp.MIN_SHAPE, 1e6)),
        st.builds(dp.GroupPrivacy, st.integers(1, 10**6), inner),
    ),
    max_leaves=6,
)
