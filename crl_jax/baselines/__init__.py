"""Baselines that are fitted in closed form, without gradient descent.

They need seconds, and are hard to beat: compare every result with them.

>>> from crl_jax import baselines, data, metrics
>>> split = data.split_by_ratio(data.simulate(seed=0).interactions, test=0.2, seed=0)
>>> fitted = baselines.ItemKNN().fit(split.train)
>>> layout = metrics.eval_layout(split.train, split.test)
>>> summary = metrics.summarize(metrics.evaluate(fitted, None, layout, ks=20))
"""

from ._baseline import Baseline as Baseline
from ._baseline import FittedBaseline as FittedBaseline
from ._ease import EASE as EASE
from ._ease import SparseEASE as SparseEASE
from ._graph_filters import BSPM as BSPM
from ._graph_filters import GFCF as GFCF
from ._graph_filters import ChebyCF as ChebyCF
from ._ials import IALS as IALS
from ._neighbours import ItemKNN as ItemKNN
from ._neighbours import RP3beta as RP3beta
from ._popularity import Popularity as Popularity
