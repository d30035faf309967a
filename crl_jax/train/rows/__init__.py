"""Row-wise optimizers for large tables: the cost of a step depends on the batch, not the table.

A :class:`RowTransformation` such as :func:`adam` defines the update of rows. :func:`gather` reads
the rows of a batch and :func:`scatter` writes their updates; :func:`crl_jax.train.fit` calls both
for a :class:`crl_jax.train.RowOptimizer`.
"""

from ._adam import AdamState as AdamState
from ._adam import adam as adam
from ._rules import Rate as Rate
from ._rules import RowTransformation as RowTransformation
from ._rules import adagrad as adagrad
from ._rules import dense as dense
from ._rules import rowwise_adagrad as rowwise_adagrad
from ._rules import sgd as sgd
from ._sharded import flush_lazy_updates_sharded as flush_lazy_updates_sharded
from ._sharded import gather_sharded as gather_sharded
from ._sharded import scatter_sharded as scatter_sharded
from ._tables import GatheredRows as GatheredRows
from ._tables import TableState as TableState
from ._tables import flush_lazy_updates as flush_lazy_updates
from ._tables import gather as gather
from ._tables import init as init
from ._tables import scatter as scatter
