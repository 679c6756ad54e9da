"""The ladder: one frozen module a stage, each holding exactly what it changes. In the order of the course."""

from .s01_naive_cat import NaiveCat
from .s02_prealloc_gather import PreallocGather
from .s03_select_append import SelectAppend
from .s04_vectorized_gather import VectorizedGather
from .s05_block_table import BlockTable
from .s06_block_table_cache import BlockTableCache
from .s07_triton_paged import TritonPaged
from .s09_numba_paged import NumbaPaged
from .s10_one_table import OneTable
from .s11_fused_step import FusedStep
from .s12_packed_weights import PackedWeights
from .s13_graphs import Graphs
from .s14_token_budget import TokenBudget
from .s15_prefix_cache import PrefixCache
from .s16_overlap import Overlap
from .s17_policies import Policies
from .s18_one_kernel import OneKernel
from .s19_speculative import Speculative
from .s21_tensor_parallel import TensorParallel
from .s23_few_launches import FewLaunches

LADDER = (
    NaiveCat, PreallocGather, SelectAppend, VectorizedGather, BlockTable, BlockTableCache, TritonPaged, NumbaPaged,
    OneTable, FusedStep, PackedWeights, Graphs, TokenBudget, PrefixCache, Overlap,
    Policies, OneKernel, Speculative, TensorParallel, FewLaunches,
)  # fmt: skip

__all__ = [
    "LADDER", "BlockTable", "BlockTableCache", "FewLaunches", "FusedStep", "Graphs", "NaiveCat", "NumbaPaged",
    "OneKernel", "OneTable", "Overlap", "PackedWeights", "Policies", "PreallocGather", "PrefixCache", "SelectAppend",
    "Speculative", "TensorParallel", "TokenBudget", "TritonPaged", "VectorizedGather",
]  # fmt: skip
