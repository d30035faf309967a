"""Training of large tables by the rows that a batch reads: a step costs what the batch costs.

A rule such as :func:`adam` says what happens to rows. :func:`read` opens those of a batch and
:func:`write` puts them back; :func:`crl_jax.train.fit` does both with a
:class:`crl_jax.train.RowOptimizer`.
"""

from ._adam import AdamRows as AdamRows
from ._adam import adam as adam
from ._devices import flush_lazy_updates_on as flush_lazy_updates_on
from ._devices import read_on as read_on
from ._devices import write_on as write_on
from ._rules import adagrad as adagrad
from ._rules import rowwise_adagrad as rowwise_adagrad
from ._rules import sgd as sgd
from ._tables import GatheredRows as GatheredRows
from ._tables import TableState as TableState
from ._tables import flush_lazy_updates as flush_lazy_updates
from ._tables import init as init
from ._tables import read as read
from ._tables import write as write
from ._transformation import Rate as Rate
from ._transformation import RowTransformation as RowTransformation
from ._transformation import dense as dense
