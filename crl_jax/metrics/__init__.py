"""Metrics of full-catalogue rankings and of representations.

:func:`eval_layout` prepares a train/test split once, :func:`evaluate` scores and ranks all items
for every test user in blocks of bounded memory, and :func:`summarize` averages over users.
:func:`recommend` returns the ranked lists; :func:`evaluate_lists` evaluates lists made elsewhere.
The metrics themselves are pure functions of hits and counts. :func:`sampling_quality` evaluates
sampled negatives, and :func:`debiased_auc` rankings of true negatives from positive and unlabelled
scores. :func:`equal_mass_calibration` and :func:`brier_score` evaluate predicted probabilities.

:func:`knn_accuracy`, :func:`linear_probe`, :func:`ridge_probe` and :func:`cross_validated_svm`
evaluate representations by labels, :func:`uniformity` without labels, :func:`retrieval_recall` and
:func:`zero_shot` across two modalities. :func:`info_nce_bound` bounds mutual information.
"""

from ._calibration import brier_score as brier_score
from ._calibration import equal_mass_calibration as equal_mass_calibration
from ._classes import ClassScores as ClassScores
from ._classes import precision_recall_f1 as precision_recall_f1
from ._classes import spearman as spearman
from ._debiased_auc import debiased_auc as debiased_auc
from ._eval_layout import EvalLayout as EvalLayout
from ._eval_layout import InteractionsLike as InteractionsLike
from ._eval_layout import eval_layout as eval_layout
from ._evaluate import ScoreFn as ScoreFn
from ._evaluate import evaluate as evaluate
from ._evaluate import evaluate_lists as evaluate_lists
from ._evaluate import recommend as recommend
from ._evaluate import summarize as summarize
from ._folds import CrossValidationResult as CrossValidationResult
from ._folds import cross_validated_svm as cross_validated_svm
from ._information import info_nce_bound as info_nce_bound
from ._neighbours import knn_accuracy as knn_accuracy
from ._neighbours import knn_predict as knn_predict
from ._probe import ProbeResult as ProbeResult
from ._probe import linear_probe as linear_probe
from ._probe import ridge_probe as ridge_probe
from ._ranking import auc as auc
from ._ranking import average_precision_at as average_precision_at
from ._ranking import f1_at as f1_at
from ._ranking import hit_precision_at as hit_precision_at
from ._ranking import hit_rate_at as hit_rate_at
from ._ranking import ndcg_at as ndcg_at
from ._ranking import precision_at as precision_at
from ._ranking import recall_at as recall_at
from ._ranking import reciprocal_rank_at as reciprocal_rank_at
from ._retrieval import retrieval_ranks as retrieval_ranks
from ._retrieval import retrieval_recall as retrieval_recall
from ._retrieval import zero_shot as zero_shot
from ._sampling import SamplingQuality as SamplingQuality
from ._sampling import sampling_quality as sampling_quality
from ._top_k import approx_top_k as approx_top_k
from ._top_k import top_k as top_k
from ._top_k import top_k_recall as top_k_recall
from ._uniformity import uniformity as uniformity
