"""Small ways to break the package, each with the tests of the quick leg that see it.

A mutant replaces one short text, which occurs once in its file, by another.  The script ``tests/mutants.py`` makes
mutants one at a time in a copy of the tree and runs the tests named; `tests/test_mutants.py` keeps the table true.
When a text has changed, name the new one; when no quick test fails, write the test, not a weaker mutant.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAMILIES", "MUTANTS", "Mutant"]


class Mutant(NamedTuple):
    """One way to break the package.

    Attributes
    ----------
    family, name : str
        What is broken, and how.
    file, old, new : str
        In which file which text, and what stands in its place.
    killers : tuple of str
        Ids of tests, at least one of which must fail: a file's path below tests, a function, perhaps its parameters.
    kernels : tuple of str
        What must be compiled again so that they run; Vulkan refuses the others, whose source has changed too.
    """

    family: str
    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]
    kernels: tuple[str, ...] = ()


MUTANTS: list[Mutant] = []
GRADIENT = "table/test_cases_gradient.py::test_gradient_in_a_random_direction"
KERNEL = "engine/kernels/test_kernel_reference.py::test_equals_the_reference"
SCATTER = "engine/kernels/test_scatter_add.py::test_sums_in_the_order_of_places"


def mutant(family: str, name: str, file: str, old: str, new: str, *killers: str) -> None:
    MUTANTS.append(Mutant(family, name, file, old, new, killers))


def gradient(name: str, file: str, old: str, new: str, *cases: str) -> None:
    """In a gradient rule, seen by derivatives of rows of the case table."""
    mutant("gradient rule", name, file, old, new, *(f"{GRADIENT}[{case}]" for case in cases))


def kernel(name: str, file: str, old: str, new: str, *primitives: str) -> None:
    """In a shader, seen by comparing primitives on lavapipe with their numpy references."""
    shader(name, file, old, new, primitives, *(f"{KERNEL}[lavapipe-{p}]" for p in primitives))


def shader(name: str, file: str, old: str, new: str, kernels: tuple[str, ...], *killers: str) -> None:
    """In a shader that these kernels include."""
    MUTANTS.append(Mutant("kernel", name, f"shaders/{file}", old, new, killers, kernels))


# ---------------------------------------------------------------------------------------------- gradient rules

gradient("matmul: doubled", "ag/ops/matmul.py", "product(run, g, b, False, True) if need[0] else None",
         "(lambda d: run(add, d, d))(product(run, g, b, False, True)) if need[0] else None", "ag_matmul-3x5_5x7")
gradient("affine: of x doubled", "ag/ops/matmul.py", "return dw, product(run, w, g, True, False).view(shape)",
         "return dw, product(run, w, run(add, g, g), True, False).view(shape)", "ag_linear-4x5_3x4_3x1-activation=None")
gradient("conv: kernel mirrored along one axis", "ag/engine/kernels/conv.py", "swapaxes(1, 2)[..., ::-1, ::-1]",
         "swapaxes(1, 2)[..., ::-1, :]", "ag_conv2d-2x5x6x3_4x2x3x2_4x1")
gradient("conv: sign of the weights'", "ag/engine/kernels/conv.py", "total += np.matmul(", "total -= np.matmul(",
         "ag_conv2d-2x5x6x3_4x2x3x2_4x1")
gradient("max pool: sign", "ag/engine/kernels/conv.py", "+= _only(chosen,", "-= _only(chosen,",
         "ag_max_pool2d-3x6x5x4-size=2")
gradient("avg pool: sign", "ag/engine/kernels/conv.py", "out[:, rows, cols] += g[:, down, across]",
         "out[:, rows, cols] -= g[:, down, across]", "ag_avg_pool2d-3x6x5x4-size=2")
gradient("softmax cross-entropy: target added", "ag/engine/kernels/norm.py", "np.subtract(dx, t, dx)",
         "np.add(dx, t, dx)", "ag_softmax_cross_entropy_loss-3x5_3x5")
gradient("softmax cross-entropy of ids: target added", "ag/engine/kernels/norm.py", "dx[classes, columns] -= factor",
         "dx[classes, columns] += factor", "ag_softmax_cross_entropy_loss(ids)-3x5_5")
gradient("softmax: sum added", "ag/engine/kernels/norm.py", "np.multiply(y, g - total(y * g",
         "np.multiply(y, g + total(y * g", "ag_softmax-3x5")
gradient("layer norm: what the variance sends back", "ag/engine/kernels/norm.py", "* (share * rate * rate)",
         "* (share * rate)", "ag_layer_norm_op-4x3_4x1_4x1")
gradient("RMS norm: what the mean square sends back", "ag/engine/kernels/norm.py", "np.subtract(s, h, out=h)",
         "np.add(s, h, out=h)", "ag_rms_norm_op-4x3_4x1")
gradient("batch norm: what the mean sends back", "ag/engine/kernels/norm.py",
         "d -= dbeta[r] * share", "d += dbeta[r] * share",
         "ag_batch_norm_op-4x3_4x1_4x1")
gradient("batch norm: sign of a given variance's", "ag/ops/normalization.py", "_SAMPLES, -0.5)", "_SAMPLES, 0.5)",
         "ag_batch_norm_op(given)-4x3_4x1_4x1_4x1_4x1")
gradient("attention: what the denominator sends back", "ag/engine/kernels/attention.py",
         "s -= deltas[m, :, i]", "s += deltas[m, :, i]", "ag_attention-4x3_4x5_2x5")
gradient("sigmoid: sign", "ag/engine/kernels/activation.py", "y * (1 - y)", "y * (1 + y)", "ag_sigmoid-3x5")
gradient("gelu: sign of the density", "ag/engine/kernels/activation.py", "_normal_cdf(x) + x * np.exp",
         "_normal_cdf(x) - x * np.exp", "ag_gelu-3x5")
gradient("slice: another place", "ag/ops/indexing.py", "start=start, step=step, length=shape[axis]",
         "start=0, step=step, length=shape[axis]", "ag_slice-7-key=slice(2, 5, None)", "ag_slice-3x5-key=(2, -4)")
gradient("concat: another piece", "ag/ops/indexing.py", "start=end - count", "start=0", "ag_concat-3x5_1x5")
gradient("embedding: a piece is lost", "ag/ops/selection.py", "run(add, total, part)", "run(add, part, part)",
         "ag_embedding_lookup-2x3_40000")
gradient("mean: not divided", "ag/ops/reduce.py", "shape=shape, factor=factor", "shape=shape, factor=1.0",
         "ag_mean-3x5")
gradient("pow: exponent", "ag/engine/kernels/elementwise.py", "p * _power(x, p - 1)", "p * _power(x, p)",
         "ag_pow-7-p=3")
gradient("clamp: outside of the interval", "ag/engine/kernels/elementwise.py", "(x >= lo) & (x <= hi)",
         "(x >= lo) | (x <= hi)", "ag_clamp-33x65-lo=-0.5-hi=0.75")
gradient("mse: factor", "ag/ops/loss.py", "factor=2.0 /", "factor=1.0 /", "ag_mse_loss-3x5_3x5")
gradient("sub: sign", "ag/ops/arithmetic.py", "return g, run(scale, g, factor=-1.0)",
         "return g, run(scale, g, factor=1.0)", "ag_sub-3x5_3x5")

# ---------------------------------------------------------------------------------------------- kernels

kernel("tanh_grad: sign", "functions.glsl", "g * (1.0 - y * y)", "g * (1.0 + y * y)", "tanh_grad")
kernel("a chain's operands change places", "chain.glsl", "r[op >> 8 & 255], r[op & 255]",
       "r[op & 255], r[op >> 8 & 255]", "fused")
kernel("fused: a register", "fused.glsl",
       "NUMBER(b, A_BINDING + 1, b_at, b_i)", "NUMBER(a, A_BINDING, a_at, a_i)", "fused")
kernel("epilogue: an operand's row", "epilogue.glsl", "c_at, word_of(c_along, row, col)",
       "c_at, word_of(c_along, 0, col)", "matmul_chain")
kernel("product: an element of a tile", "product.glsl", "sums[s + QUADS], a_k[i].y, b_k[j]",
       "sums[s + QUADS], a_k[i].x, b_k[j]", "matmul")
kernel("softmax: the maximum is not taken off", "softmax.comp",
       "ieee_exp(some[i] - all.largest)", "ieee_exp(some[i])", "softmax")
kernel("softmax: what is behind the end counts", "columns.glsl",
       "within(k, i, end) ? ieee_exp(some[i] - base(most)) : 0.0",
       "ieee_exp(some[i] - base(most))", "softmax")
kernel("layer norm: one gamma for all", "layer_norm.comp", "NUMBER(gamma, 4, gamma_at, f)",
       "NUMBER(gamma, 4, gamma_at, 0)", "layer_norm")
shader("adam: bias correction", "counts.glsl", "counted(counts_at(slot) + 1, rate2)",
       "counted(counts_at(slot) + 1, rate1)", ("adam_update",), f"{KERNEL}[lavapipe-adam_update]")
shader("adam: counts of another parameter", "adam_update.comp", "while (start + i >= slot_end)", "while (false)",
       ("adam_update",), "optim/test_counts.py::test_every_parameter_is_trained_as_if_alone[lavapipe]")
shader("an element of another turn", "turns.glsl", "workgroup() * turns + turn", "workgroup() * turns", ("relu", "add"),
       "engine/kernels/test_kernel_reference.py::test_turns_have_the_same_bits[lavapipe-relu]")
shader("adam: whose element it is", "counts.glsl", "while (element >= places[ends + slot]) slot++;", "slot++;",
       ("adam_update",), "optim/test_counts.py::test_every_parameter_is_trained_as_if_alone[lavapipe]")
kernel("sgd: Nesterov's momentum", "sgd_update.comp", "d + mu * b : b", "d + b : b", "sgd_update")
kernel("dropout: what is kept is not scaled", "dropout.comp", "1.0 / (1.0 - rate)", "1.0", "dropout")
shader("conv: a tap", "conv2d_forward_direct.glsl", "w_0 + down * kernel_1 + across",
       "w_0 + down * kernel_0 + across", ("conv2d_direct",), f"{KERNEL}[lavapipe-conv2d]")
shader("conv: the padding", "window.glsl", "tap * dilation_0 - padding_0", "tap * dilation_0",
       ("conv2d", "conv2d_direct"), f"{KERNEL}[lavapipe-conv2d]")
shader("a quotient is too small", "quotient.glsl", "(high + n) >> shift", "high >> shift",
       ("add", "permute", "max_pool2d"), f"{KERNEL}[lavapipe-permute]", f"{KERNEL}[lavapipe-max_pool2d]",
       "engine/backends/test_quotients.py::test_quotients_on_the_device[lavapipe]")
shader("a shift of another axis", "walk.glsl", "8 * ((axis - 1) % 4)", "8 * (axis % 4)", ("permute",),
       f"{KERNEL}[lavapipe-permute]")
shader("norm statistics: length of the last piece", "norm_statistics.comp", "float size = float(end - first)",
       "float size = float(chunk)", ("norm_statistics",), "engine/kernels/test_norm.py::test_rows_in_pieces")
shader("norm: a round reaches behind the end", "rows.glsl", "i + (some - 1) * 128 < end", "i < end",
       ("norm_statistics", "norm_sums"), "engine/kernels/test_norm.py::test_rows_in_pieces")
shader("attention: what earlier pieces summed up", "attention_online.glsl", "total * factor + old", "total * factor",
       ("attention",), "engine/kernels/test_attention_pieces.py::test_equals_float64[plain]")
kernel("layer norm: what is behind the end counts", "columns.glsl", "within(k, i, end) ? some[i] : 0.0", "some[i]",
       "layer_norm")
kernel("RMS norm: what is behind the end counts", "rms_norm.comp", "within(k, i, end) ? some[i] * some[i] : 0.0",
       "some[i] * some[i]", "rms_norm")
kernel("RMS norm: a sum is of another column's rate", "rms_norm_sums.comp", "rate_of(square[square_at + i], eps)",
       "rate_of(square[square_at], eps)", "rms_norm_sums")
shader("scatter: places of the next window", "scatter_add.comp", "list(bits, before - window,",
       "list(bits, before + window,", ("scatter_add",), SCATTER)
shader("scatter: places of another word", "scatter_add.comp", "listed[at] / PLACES == word", "true",
       ("scatter_add",), SCATTER)
shader("philox: keys change places", "philox.glsl", "uvec2(0x9E3779B9u, 0xBB67AE85u)",
       "uvec2(0xBB67AE85u, 0x9E3779B9u)", ("dropout",),
       "engine/test_random.py::test_the_mask_is_the_same_on_every_device[lavapipe-257]")
kernel("fold: half of the elements", "fold.glsl", "k += shares", "k += 2 * shares", "max", "min", "prod")
kernel("draws: one word four times", "draws.glsl", "f(bits[word])", "f(bits[0])", "uniform", "randint")
kernel("randint: the lower half of the product", "randint.comp", "int(upper)", "int(lower)", "randint")
kernel("from_whole: without a sign", "from_whole.comp", "float(int(x))", "float(x)", "from_whole")
shader("half: ties upwards", "half_bits.glsl", "0xFFFu + (size >> 13 & 1u)", "0x1000u", ("narrow", "widen"),
       "autograd/test_mixed_precision.py::test_rounding_is_to_the_nearest_ties_to_even[lavapipe-f16]")

# ---------------------------------------------------------------------------------------------- pipelines

TOGETHER = "engine/backends/test_pipelines.py::test_a_program_asks_for_all_that_it_lacks"
mutant("capture", "a program's pipelines are made one by one", "ag/engine/backends/vulkan/backend.py",
       "self._kernels.make(planned)", "pass",
       TOGETHER)
mutant("capture", "pipelines that were made are not kept", "ag/engine/backends/vulkan/pipelines.py",
       "if algorithm is not None:", "if algorithm is None:", TOGETHER)

# ---------------------------------------------------------------------------------------- memory that the host sees

TRANSFERS, SEEN = "ag/engine/backends/vulkan/transfers.py", "engine/backends/test_seen_memory.py"
mutant("barrier", "the host overtakes what is on its way", TRANSFERS, "if free and recorder", "if recorder",
       f"{SEEN}::test_what_is_on_its_way_comes_first")
mutant("barrier", "the host overtakes what a handler launches", TRANSFERS, "if free and recorder.changes == changes:",
       "if free:", f"{SEEN}::test_a_handler_in_the_middle[lavapipe-for the first]")
mutant("barrier", "the host reads while a handler's launch writes", TRANSFERS,
       "if self._recorder.changes == changes:", "if view is not None:",
       f"{SEEN}::test_what_is_launched_while_the_host_reads_is_read_again")
mutant("barrier", "the host reads what a lost device has left", TRANSFERS,
       "if self._recorder.idle or self._recorder.beside.busy:", "if count < 0:",
       f"{SEEN}::test_nothing_is_copied_by_the_device")
mutant("barrier", "none for the host", "ag/engine/backends/vulkan/stream.py",
       "if self._host_sees:\n                sequence.to_host()", "if False:\n                pass",
       "engine/backends/test_hazards.py::test_a_barrier_is_for_copies_where_there_may_be_some")
BESIDE, QUEUES = "ag/engine/backends/vulkan/stream.py", "queues/test_transfer_queue.py"
mutant("barrier", "an upload overtakes launches that read its place", BESIDE, "self._wait_for(touching[-1])", "pass",
       f"{QUEUES}::test_words_that_launches_read_are_not_overtaken[copies]")
mutant("barrier", "an upload overtakes another one", BESIDE,
       "self.beside.wait(address, address + words.nbytes)", "pass", f"{QUEUES}::test_an_upload_onto_an_upload[copies]")
mutant("barrier", "the host writes what an upload is on its way to", BESIDE, "self.beside.touches(start, end) or ", "",
       f"{QUEUES}::test_memory_that_the_host_writes_and_an_upload_is_on_its_way_to[launches]")
mutant("barrier", "nobody waits for what goes up beside launches", BESIDE, "self.beside.wait()", "pass",
       f"{QUEUES}::test_an_upload_goes_beside_launches_and_arrives_before_those_after_it[launches-9]")
mutant("barrier", "a profile has no times of uploads", BESIDE, "self.timing is not None or self.idle", "self.idle",
       f"{QUEUES}::test_a_profile_and_an_idle_device_have_one_queue[launches]")
mutant("barrier", "an upload overtakes what a handler launches", "ag/engine/backends/vulkan/transfer_queue.py",
       "if launches.changes == changes:", "if True:", f"{QUEUES}::test_a_handler_in_the_middle_of_an_upload[copies-17]")
mutant("barrier", "the host writes much over a bus", TRANSFERS, " or words.nbytes > self._most_written", "",
       "limits/test_seen_memory.py::test_words_go_the_quickest_way[resizable BAR]")
mutant("barrier", "reads on their way do not count", "ag/engine/backends/vulkan/stream.py",
       "in (*command.reads, *command.writes))", "in command.writes)", f"{SEEN}::test_what_is_on_its_way_comes_first")

# ---------------------------------------------------------------------------------------------- barriers

COMMANDS = "ag/engine/backends/vulkan/stream.py"
TWO = "engine/backends/test_hazards.py::test_two_launches"
QUICKLY = "engine/backends/test_launch_cache.py"
QUICK = "ag/engine/backends/vulkan/pipelines.py"
mutant("kernel", "zeros of either sign are looked up", QUICK, "if plain and not zero and", "if plain and",
       f"{QUICKLY}::test_zeros_of_both_signs[lavapipe]")
mutant("kernel", "launches are looked up whatever the precision", QUICK,
       '(backend.settings, "precision", "highest")', '(backend.settings, "events", None)',
       f"{QUICKLY}::test_what_decides_is_looked_at[lavapipe]")
mutant("kernel", "launches of unaligned operands are those of aligned ones", QUICK,
       "_MULTIPLE, _OTHER = 0, 4", "_MULTIPLE, _OTHER = 0, 0",
       f"{QUICKLY}::test_the_same_commands[lavapipe-words of four]")
ZEROS = "capture/test_zeros.py"
mutant("capture", "zeros of either sign are one value", "ag/capture/guards.py",
       "return copysign(1.0, x) == copysign(1.0, y)", "return True",
       f"{ZEROS}::test_a_step_that_reads_another_zero_is_recorded_anew[cpu-a parameter]")
mutant("capture", "zeros of either sign are one operand", "ag/capture/call.py",
       "not all(map(equal, x, y))", "x != y",
       f"{ZEROS}::test_a_zero_that_nobody_sees_change_shows_in_the_second_call[cpu-a number]")
mutant("capture", "zeros of either sign are one parameter", "ag/capture/call.py",
       "if not equal(a.params.get(name), b.params.get(name)):", "if a.params.get(name) != b.params.get(name):",
       f"{ZEROS}::test_a_zero_that_nobody_sees_change_shows_in_the_second_call[cpu-a parameter]")
mutant("kernel", "zeros of either sign are one launch", "ag/engine/backends/vulkan/pipelines.py",
       'if 0.0 in params.values() or "chain" in params else ()', "if False else ()",
       "engine/kernels/test_chains.py::test_zeros_of_either_sign_are_not_the_same_launch[lavapipe]")
mutant("kernel", "zeros of either sign are one number of a chain", "ag/engine/backends/shader/plans.py",
       "*[number for *_, number in cast(Chain, params.get(\"chain\", ()))]", "",
       "engine/kernels/test_chains.py::test_zeros_of_either_sign_are_not_the_same_launch[lavapipe]")
mutant("barrier", "none for a read after a write", COMMANDS, "or _overlap(reads, self._writes)", "",
       f"{TWO}[read after write]")
mutant("barrier", "none for a write after a write", COMMANDS, "or _overlap(writes, self._writes)", "",
       f"{TWO}[write after write]")
mutant("barrier", "none for a write after a read", COMMANDS, "or _overlap(writes, self._reads)", "",
       f"{TWO}[write after read]")
mutant("barrier", "a barrier settles nothing", COMMANDS, "if needed:", "if not needed:",
       "engine/backends/test_hazards.py::test_random_programs[0]")
mutant("barrier", "a program does not wait for copies before it", COMMANDS, "copies or i == 0)", "copies)",
       "engine/backends/test_hazards.py::test_a_barrier_is_for_copies_where_there_may_be_some")
mutant("barrier", "none at the start of a sequence", COMMANDS, "or i == 0 or", "or",
       "engine/backends/test_hazards.py::test_a_sequence_begins_with_a_barrier")

# ---------------------------------------------------------------------------------------------- compiler passes

COMPILE, TESTS = "ag/engine/compile", "engine/compile"


def condition(name: str, file: str, old: str, new: str, *killers: str) -> None:
    """A condition of a pass, seen by its tests on the CPU unless they name a device."""
    mutant("pass", f"{file}: {name}", f"{COMPILE}/{file}.py", old, new,
           *(killer if "/" in killer else f"{TESTS}/test_{file}.py::{killer}" for killer in killers))


FOLD = f"{TESTS}/test_fold_scaling.py::test_factors_that_stay_where_they_are"
condition("factors differ", "copy_elimination", "graph[i].buffers[2].address != factor.address for i in products",
          "i < 0 for i in products", f"{FOLD}[cpu-two factors-7]")
condition("the factor is written in between", "copy_elimination",
          "graph.is_written(factor, min(products), update)", "False", f"{FOLD}[cpu-changed factor-7]")
condition("the flat buffer is read in between", "copy_elimination", "or _scaled_operand(graph[i]) is None for", "for",
          f"{FOLD}[cpu-gathered read-7]")
condition("part of the flat buffer is not scaled", "copy_elimination", "or not _cover(flat, ",
          "or (lambda *_: False)(flat, ", f"{FOLD}[cpu-gap-7]")
condition("a view outside", "copy_elimination", "return not graph.is_viewed(block.address)", "return True",
          "test_copies[cpu-a_view_outside]")
condition("the target in use", "copy_elimination", "if first <= i < j:", "if False:",
          "test_copies[cpu-a_target_that_is_read]", "test_copies[cpu-a_target_that_is_written]")
condition("the source is written again", "copy_elimination", "if any(i != first and i not in without",
          "if any(i < 0 and i not in without", f"{FOLD}[cpu-gap-7]")
condition("a later user", "copy_elimination", "if last != j or", "if", "test_copies[cpu-two_copies]")
condition("memory that lasts", "copy_elimination", "or not producer.fresh or", "or",
          "test_copies[cpu-a_state]")
condition("the target is written later", "copy_elimination", "if i > j and", "if False and",
          "test_copies[cpu-a_target_that_is_overwritten]")
condition("memory that somebody holds", "copy_elimination", "and graph.is_private(b.block.address)", "",
          f"{TESTS}/test_memory_plan.py::test_what_nobody_reads_is_not_computed[cpu]")
condition("what a launch reads", "copy_elimination", "wanted.update(b.block.address for b in launch.operands)", "pass",
          f"{TESTS}/test_memory_plan.py::test_a_chain_needs_few_buffers[cpu]",
          f"{TESTS}/test_memory_plan.py::test_an_elementwise_chain_works_in_place[cpu]")
condition("an operand changes", "rematerialize", "graph.is_written(x, span.first + 1, until) for x in maker.operands",
          "False for x in maker.operands",
          "test_cheap_results_are_computed_again[cpu-True]")
condition("two writers", "fuse_elementwise", "len(graph.writers[place]) > 1 or", "",
          "test_chains[cpu-a_result_that_is_overwritten]")
condition("an operand changes", "fuse_elementwise",
          "graph.is_written(x, earlier.members[-1], i) for x in earlier.operands", "False for x in earlier.operands",
          "test_chains[cpu-a_change_of_an_operand]")
condition("a result is read too early", "fuse_elementwise", "if others and others[0] < i:", "if False:",
          "test_replays_of_random_launches")
condition("the register that is kept", "fuse_elementwise",
          "kept = (first.out, OPERANDS + len(first.steps) - 1) if stored", "kept = (first.out, OPERANDS) if stored",
          "test_chains[cpu-a_result_of_two_that_is_read_later]")
EPILOGUES = f"{TESTS}/test_fuse_epilogues.py"
condition("a factor's memory has the result", "fuse_elementwise", "graph.is_written(x, j + 1, i + 1)",
          "graph.is_written(x, j + 1, i)", f"{EPILOGUES}::test_a_result_in_the_place_of_a_factor_keeps_them_apart[cpu]")
condition("a factor changes", "fuse_elementwise", "graph.is_written(x, j + 1, i + 1)", "graph.is_written(x, i, i + 1)",
          f"{EPILOGUES}::test_epilogues[cpu-a_factor_that_changes]")
condition("a product is read later", "fuse_elementwise", "replace(chain, kept=(out, 0)) if later else chain", "chain",
          f"{EPILOGUES}::test_epilogues[cpu-a_product_that_is_read_later]")
condition("memory rests", "memory_plan", "until = item.last + rest", "until = item.last",
          "test_memory_rests_before_others_get_it")
condition("lifetimes touch", "memory_plan", "(last >= item.first)", "(last > item.first)",
          "test_memory_rests_before_others_get_it")
condition("lasting memory", "memory_plan", "take(since, inf, start", "take(since, since, start",
          f"{TESTS}/test_memory_plan.py::test_recomputing_changes_no_bit[gpt]",
          "capture/test_capture.py::test_80_steps_equal_eager_to_the_bit[cpu]")
condition("who holds memory", "graph", "if blocks[b.block.address] is not None]", "if False]",
          f"{TESTS}/test_graph.py::test_what_others_hold_has_escaped")
condition("who has a view", "graph", "frozenset(b.block.address for b in views)", "frozenset()",
          f"{TESTS}/test_copy_elimination.py::test_copies[cpu-a_view_outside]")
condition("a write at the end", "graph", "bisect_left(writers, until)]", "bisect_left(writers, until) - 1]",
          "test_a_written_part_of_a_block_with_many_users",
          f"{FOLD}[cpu-changed factor-7]")

# ---------------------------------------------------------------------------------------------- mixed precision

mutant("rounding", "masters are rounded in every step", "ag/engine/kernels/convert.py", "where=~same)", "where=True)",
       "autograd/test_loss_scale.py::test_small_steps_add_up[cpu-f16-Adam]")
mutant("rounding", "twice: to f16, then to bf16", "ag/engine/kernels/convert.py", "out[...] = stored(x, half",
       "out[...] = stored(x.astype(np.float16).astype(np.float32), half",
       "autograd/test_mixed_precision.py::test_rounding_is_to_the_nearest_ties_to_even")
mutant("rounding", "a parameter's gradient is rounded", "ag/autograd/tape.py",
       "F32 if x.node is None else x.buffer.dtype", "x.buffer.dtype",
       "autograd/test_loss_scale.py::test_a_gradient_too_small_for_f16_arrives[cpu]")
mutant("rounding", "a loss is rounded", "ag/autograd/half.py", "dtype if out.shape else F32", "dtype",
       "autograd/test_mixed_precision.py::test_losses_and_totals_are_float32")
mutant("rounding", "the loss scale is not undone", "ag/autograd/tape.py", "else unscaled(g)", "else g",
       "autograd/test_loss_scale.py::test_the_scale_changes_no_gradient[cpu]")
OWNERS = "autograd/test_loss_scale_owners.py"
mutant("rounding", "a loss scale holds for everybody", "ag/autograd/half.py", "for _, scale in owners.values()}",
       "for scale in _every()}", f"{OWNERS}::test_a_parameter_of_no_optimizer_is_not_scaled[cpu]")
mutant("rounding", "of several loss scales, not the smallest", "ag/autograd/half.py", "if len(states) < 2:",
       "if len(states) < 9:", f"{OWNERS}::test_a_pass_to_several_uses_the_smallest[cpu-eager]")
mutant("rounding", "a state does not say who adopted last", "ag/optim/optimizer.py",
       'arrays.get("claimed_later", ())', "()",
       f"{OWNERS}::test_a_resumed_job_knows_who_adopted_last[cpu-stepped2-order0]")
mutant("rounding", "a replay does not see that another optimizer has adopted", "ag/autograd/half.py",
       "return scale is not None and any(scale.later(params))", "return False",
       f"{OWNERS}::test_a_step_adopts_again_what_a_state_took[cpu-captured]")
mutant("capture", "a handler's call takes the slots of the call it interrupts", "ag/capture/step.py",
       "            if self._busy:", "            if self._gave_up:",
       "capture/test_inputs.py::test_whoever_calls_the_step_in_the_middle_of_a_call[cpu]")
mutant("capture", "what moved is copied from where it was", "ag/engine/backends/vulkan/transfers.py",
       "recorded = self._recorded.get(origin := tuple(sources))",
       "recorded = next(iter(self._recorded.values()), None); origin = tuple(sources)",
       "capture/test_inputs.py::test_many_calls_at_once[lavapipe-3]")
mutant("capture", "a later position does not see all keys", "ag/nn/attention.py", "causal_mask = False", "pass",
       "nn/test_key_value_cache.py::test_logits_are_those_of_the_whole_sequence[cpu-5-1]")
mutant("capture", "weights may change", "ag/nn/attention.py",
       "was is None or t is None or was() is not t.buffer or t.buffer.changed_since(before.began)", "False",
       "nn/test_key_value_cache.py::test_a_training_step_between_two_positions[cpu]")
mutant("capture", "layers may be at different positions", "ag/nn/attention.py",
       "if before.positions > (least := min(lengths)):", "if least := 0:",
       "nn/test_key_value_cache.py::test_a_layer_that_stands_in_two_places")
mutant("capture", "a captured step keeps what it read", "ag/capture/reads.py", "return ref(value)",
       "return value", f"{OWNERS}::test_a_captured_step_keeps_no_optimizer[cpu]")
mutant("rounding", "a replay keeps the loss scale it had", "ag/autograd/half.py",
       "partial(_references, [*self._params], device)", "lambda found=[*map(ref, states)]: found",
       f"{OWNERS}::test_a_replay_scales_as_an_eager_pass_would[cpu]")
mutant("rounding", "an overflow is not seen", "ag/engine/kernels/optimizer.py",
       "part.size - np.count_nonzero(np.isfinite(part))", "0",
       "autograd/test_loss_scale.py::test_an_overflow_skips_the_step_and_halves_the_scale[cpu-Adam]")

# ---------------------------------------------------------------------------------------------- random numbers

mutant("random stream", "every draw the same", "ag/engine/kernels/random.py", "<< 32) + 1", "<< 32)",
       "engine/test_random.py::test_every_draw_takes_the_next_stream[cpu]")
mutant("random stream", "samples of a step share one", "ag/parallel/trainer/samples.py",
       "(first + self.place) * (draws or 0)", "first * (draws or 0)",
       "parallel/trainer/test_dp_train.py::test_each_sample_draws_numbers_of_its_own")
mutant("random stream", "another thread's generator is not noticed", "ag/engine/random.py",
       "return None if generator_state(backend) is state else", "return None if state else",
       "engine/test_threads.py::test_a_step_captured_with_another_generator_is_recorded_anew[cpu]")

# ---------------------------------------------------------------------------------------------- capture and tape

mutant("capture", "guards are not asked", "ag/capture/program.py", "for guard in self._guards:",
       "for guard in ():",
       "engine/test_threads.py::test_a_step_captured_with_another_generator_is_recorded_anew[cpu]")
mutant("capture", "what was read is not compared", "ag/capture/program.py",
       "return self._notes.change(holds)", "return None", "capture/test_capture_guards.py::test_another_mode[cpu]")
mutant("capture", "recordings are not compared", "ag/capture/step.py", "if difference is not None:", "if False:",
       "capture/test_capture_contract.py::test_a_branch[cpu]")
mutant("capture", "numbers are not checked", "ag/capture/arguments.py", "for i, limit, refuse in self.checks:",
       "for i, limit, refuse in ():",
       "capture/test_capture.py::test_integer_labels_are_checked_before_anything_runs[cpu]")
mutant("capture", "a tensor's slot is not filled", "ag/capture/arguments.py",
       "to.append((self.target, value.buffer))", "pass",
       "capture/test_capture.py::test_arrays_and_tensors_fill_the_slots[cpu]")
mutant("capture", "objects of a layer's own are not looked into", "ag/capture/guards.py",
       "self._reader.values(value)", "pass",
       "capture/test_capture_guards.py::test_an_object_of_a_layers_own_changes[Plain-list]")
mutant("capture", "names that are not there yet are not looked for", "ag/capture/guards.py",
       "self._group(place).absent |= names", "pass",
       "capture/test_reads.py::test_the_first_call_after_a_change_is_the_eager_one[absent]")
mutant("capture", "memory that is used again means the same", "ag/capture/guards.py",
       "return ref(value, gone.append)", "return ref(value)",
       "capture/test_reads.py::test_another_object_in_the_same_memory")
mutant("capture", "what a step takes is not asked for", "ag/capture/guards.py",
       "if (taken := self._reader.taken()) is not None:", "if (taken := None) is not None:",
       "capture/test_reads.py::test_what_is_taken_is_refused[random]")
mutant("capture", "values of arguments are told", "ag/capture/arguments.py",
       "            recording_here().refuse(CaptureError(refused))", "            pass",
       "capture/test_step_argument.py::test_values_are_refused[asarray]")
mutant("capture", "replays set the same list", "ag/capture/guards.py", "            if made:",
       "            if False:",
       "capture/test_effects.py::test_a_replay_leaves_what_the_eager_call_would[a new list]")
mutant("capture", "what differs from call to call is set again", "ag/capture/call.py",
       " or effects.difference(self.notes.effects)", "",
       "capture/test_effects.py::test_what_is_set_to_something_else_each_time_is_refused")
WAITING = "capture/test_waiting.py"
mutant("capture", "nothing waits for the program", "ag/capture/call.py", "waits=not trial", "waits=False",
       f"{WAITING}::test_a_recorded_call_needs_the_memory_of_its_program[cpu]")
mutant("capture", "the program of a new recording does not run", "ag/capture/program.py",
       "            self.program.run()\n        _copy", "            pass\n        _copy",
       "capture/test_capture.py::test_80_steps_equal_eager_to_the_bit[cpu]")
mutant("capture", "the host writes before what was noted", "ag/engine/program.py",
       "recording.touches(buffers)", "False", f"{WAITING}::test_an_upload_comes_after_what_was_noted[cpu]",
       f"{WAITING}::test_an_assignment_comes_after_what_was_noted[cpu]")
mutant("capture", "whatever the host writes makes launches run", "ag/engine/program.py",
       "self.waits and any(id(b.block) in self._touched for b in buffers)", "self.waits",
       f"{WAITING}::test_what_nobody_works_on_lets_it_wait[cpu]")
mutant("capture", "views stay where nothing is", "ag/engine/program.py",
       "self.settle_in([*views, *(b for launch", "self.settle_in([*(b for launch",
       f"{WAITING}::test_views_move_with_what_they_show[cpu]")
mutant("capture", "another thread takes what was not computed", "ag/engine/program.py",
       "if recording.thread != get_ident():", "if False:",
       f"{WAITING}::test_another_thread_hears_that_it_is_too_early[cpu]")
mutant("capture", "launches that failed seem to have run", "ag/engine/program.py",
       "in self._moved:", "in ():",
       f"{WAITING}::test_where_a_program_fails_the_results_have_no_values")
mutant("capture", "a compared call may still be made", "ag/engine/program.py",
       "self.given_up, self._ready = True, False", "self._ready = False",
       f"{WAITING}::test_where_a_program_fails_the_results_have_no_values")
mutant("capture", "a step that fails is not made up to there", "ag/capture/call.py",
       "        self.recording.catch_up()\n", "",
       f"{WAITING}::test_an_error_in_the_step_leaves_what_an_eager_call_leaves[cpu]",
       f"{WAITING}::test_a_compared_call_that_does_something_else_is_made[cpu]")
mutant("capture", "what is kept has no values", "ag/capture/program.py",
       "            recording.catch_up()\n", "",
       f"{WAITING}::test_a_tensor_that_is_kept_has_its_values[cpu]")
mutant("capture", "what a step leaves is not compared", "ag/capture/call.py", "(*made_of, *left)", "made_of",
       f"{WAITING}::test_what_is_left_is_compared[cpu-result]",
       f"{WAITING}::test_what_is_left_is_compared[cpu-gradient]")
mutant("capture", "gradients are lost where the program fails", "ag/capture/step.py",
       "        except BaseException as error:\n            call.undo()\n",
       "        except BaseException as error:\n",
       f"{WAITING}::test_too_little_memory_for_a_program_loses_no_gradient[cpu]")
mutant("capture", "what a step has changed itself is overlooked", "ag/capture/guards.py",
       "self.own_change = self.change(attributes=False)", "self.own_change = None",
       "capture/test_effects.py::test_a_replay_leaves_what_the_eager_call_would[an item]")
mutant("capture", "a refused sample is computed twice", "ag/parallel/trainer/replica.py",
       "if self._completed == completed:", "if True:",
       "parallel/trainer/test_captured_samples.py::test_functions_are_called_once_per_sample[cpu-noise of numpy]")
mutant("capture", "what a replay writes is not noted", "ag/capture/program.py",
       "changes.last = changes.places[place] = time", "pass",
       "autograd/test_unchanged.py::test_a_replay_between_forward_and_backward[cpu]")
mutant("tape", "the oldest node first", "ag/autograd/tape.py", "return self.order > other.order",
       "return self.order < other.order", "autograd/test_tape.py::test_a_parameter_used_often_gets_its_gradient_once")
mutant("tape", "a cotangent is not added", "ag/autograd/tape.py",
       "_sum(whole(known), whole(g))", "_sum(whole(g), whole(g))",
       "autograd/test_tape.py::test_a_parameter_used_often_gets_its_gradient_once[cpu]",
       "autograd/test_tape.py::test_both_operands_may_be_the_same_parameter[cpu]")
mutant("tape", "broadcasting is not undone", "ag/autograd/tape.py", "g = shaped_like(x, g)", "pass",
       "autograd/test_tape.py::test_broadcasting_is_undone[cpu]")

# ---------------------------------------------------------------------------------------------- training

UPDATES, FORMULA = "ag/engine/kernels/optimizer.py", "optim/test_optimizers.py::test_formula"
mutant("optimizer", "adam: bias correction", UPDATES, "c2 += rate2 * (1 - c2)", "c2 += rate1 * (1 - c2)",
       f"{FORMULA}[cpu-adam]")
mutant("optimizer", "adamw: decay without the rate", UPDATES, "1 - lr * weight_decay", "1 - weight_decay",
       f"{FORMULA}[cpu-adamw]")
mutant("optimizer", "sgd: momentum", UPDATES, "momentum *= mu", "momentum *= 1", f"{FORMULA}[cpu-sgd, momentum]")
mutant("optimizer", "clip: coefficient", UPDATES, "type(max_norm) / unit / root", "type(1) / unit / root",
       "optim/test_clip.py::test_clip_grad_norm[cpu]")
mutant("optimizer", "some parameters: a run's length", "ag/optim/flat.py", "last.length + length", "length",
       "optim/test_optimizers.py::test_neighbours_in_the_flat_buffer_are_updated_together[cpu]")
mutant("optimizer", "a flat buffer that the device does not address", "ag/optim/flat.py", "end + length > room",
       "end > room", "optim/test_large_models.py::test_groups_fit[cpu]")
shader("the tickets of a part of a launch", "ticket.glsl", "== groups - 1;",
       "== gl_NumWorkGroups.x * gl_NumWorkGroups.y - 1;", ("adam_update",),
       "engine/kernels/test_edges.py::test_the_state_moves_on_once_per_launch[lavapipe]")
mutant("kernel", "by address: the alignment of what is reached", "ag/engine/backends/vulkan/spirv.py",
       "mask | _ALIGNED, alignment", "mask | _ALIGNED, 2 * alignment",
       "engine/backends/test_spirv.py::test_quads_are_aligned_as_such")
mutant("kernel", "by address: which operands", "ag/engine/backends/vulkan/pipelines.py",
       "self._segments[n][0] > self.covered]", "self._segments[n][0] > 4 * self.covered]",
       "engine/backends/test_spirv.py::test_each_set_of_operands_by_address_has_a_pipeline")
mutant("kernel", "by address: one pipeline for all sets of operands", "ag/engine/backends/vulkan/pipelines.py",
       "return compiled, tuple(", "return compiled, ()  # (",
       "engine/backends/test_spirv.py::test_each_set_of_operands_by_address_has_a_pipeline")
mutant("optimizer", "a group without gradients counts no step of its neighbours", "ag/optim/optimizer.py",
       "if slots not in took:", "if slots in took:",
       "optim/test_large_models.py::test_they_train_as_one[cpu-optimizer_adam-f32-eager]")
mutant("capture", "compiled comparison: requires_grad", "ag/capture/guards.py",
       '(attributes["requires_grad"], tensors, flags), ', "",
       "capture/test_unchanged.py::test_what_changes_is_noticed[6-compiled]")
mutant("capture", "compiled comparison: names of other places", "ag/capture/guards.py",
       "for group in groups if group.in_dict],", "for group in [*groups][:1] if group.in_dict],",
       "capture/test_unchanged.py::test_what_changes_is_noticed[9-compiled]")
mutant("scheduler", "cosine: period", "ag/optim/schedule.py", "cos(pi * k / self.T_max)",
       "cos(pi * k / (self.T_max + 1))", "optim/test_schedule.py::test_cosine_begins_at_lr_and_ends_at_lr_min")
mutant("scheduler", "step: a step early", "ag/optim/schedule.py", "(k // self.step_size)",
       "((k + 1) // self.step_size)", "optim/test_schedule.py::test_step")
mutant("data", "every epoch in the same order", "ag/data/dataloader.py", "counter=[0, 0, place.epoch, 0]",
       "counter=[0, 0, 0, 0]", "data/test_dataloader.py::test_every_epoch_has_its_own_order_of_all_samples")
mutant("data", "prefetching skips a batch", "ag/data/dataloader.py", "self._gather(place, k, check)",
       "self._gather(place, k + 1, check)",
       "data/test_dataloader.py::test_prefetching_changes_nothing")
mutant("data", "a rank's share begins a sample late", "ag/data/dataloader.py", "begin = rank * each + min(rank, more)",
       "begin = rank * each + rank", "data/test_share.py::test_the_parts_of_all_ranks_are_the_batches")
mutant("data", "a part gets more of a class than its share", "ag/data/splits.py", "-missing))", "missing))",
       "data/test_splits.py::test_parts_are_exact_apart_and_in_proportion")
mutant("data", "held-out samples are shuffled", "ag/data/dataloader.py", '{"shuffle": False, "drop_last": False}',
       '{"drop_last": False}',
       "data/test_splits.py::test_the_first_part_is_for_training_and_others_for_measuring")
mutant("data", "held-out images are cropped at random", "ag/data/image_folder.py",
       "self._fit._replace(random_crop=False, random_flip=False)", "self._fit._replace(random_flip=False)",
       "data/test_splits.py::test_held_out_images_are_cut_from_the_middle")
mutant("data", "a sample is not copied", "ag/data/samples.py", "return np.array(_numbers(item, what))",
       "return _numbers(item, what)",
       "data/test_dict_samples.py::test_samples_are_copied_and_keys_may_come_in_any_order")
mutant("data", "a loader of PyTorch is always shuffled", "ag/data/samples.py", '"SequentialSampler": False',
       '"SequentialSampler": True', "data/test_adapters.py::test_fit_takes_torch_loaders")
mutant("data", "crops are the same in every pass", "ag/data/image_folder.py", "counter=[0, 0, of.number, _CUTS]",
       "counter=[0, 0, 0, _CUTS]",
       "data/test_images.py::test_what_is_drawn_follows_from_seed_pass_and_image_alone")
mutant("data", "a class's number is its line", "ag/data/imagenet.py", "ids.append(id_of[synset])",
       "ids.append([*known].index(synset))",
       "data/test_imagenet.py::test_classes_are_filtered_and_numbered_as_asked_for")
mutant("data", "ties count as hits", "ag/data/imagenet.py", "(np.arange(len(scores))[:, None] < right)", "False",
       "data/test_imagenet.py::test_top_1_is_argmax_and_a_dead_model_is_not_right")
mutant("checkpoint", "the generator is lost", "ag/io/checkpoint.py",
       'parts.append(_Part("generator", generator_snapshot(), generator, restore_generator))', "pass",
       "io/test_checkpoint.py::test_every_device_goes_on_with_its_own_stream")
mutant("checkpoint", "the rate's digits are lost", "ag/io/checkpoint.py", "json.dumps(float(optimizer.lr))",
       "json.dumps(float(optimizer.state_dict()['state'][0]))",
       "io/test_checkpoint.py::test_a_rate_set_by_hand_keeps_its_digits")
mutant("checkpoint", "a job forgets how many random streams a stack takes", "ag/parallel/trainer/trainer.py",
       "self._draws = state.draws", "self._draws = state.draws + 1",
       "parallel/trainer/test_checkpoint.py::test_a_resumed_job_is_the_undisturbed_one[cpu-apart]")

# ---------------------------------------------------------------------------------------------- parallel

TRAINER, DP_TRAIN = "ag/parallel/trainer", "parallel/trainer/test_dp_train.py"
SAME_BITS = "parallel/trainer/test_placements.py::test_any_placement_gives_the_bits_of_one_replica[eager-3 replicas]"
mutant("trainer", "a replica's rows lie on each other", f"{TRAINER}/replica.py",
       "self._weighed(stack, len(self._tree.nodes)", "self._weighed(stack, 0", SAME_BITS)
mutant("trainer", "not divided by the number of samples", f"{TRAINER}/trainer.py",
       "add_up(nodes, self._mean, count)", "add_up(nodes, self._mean, len(self.replicas))", SAME_BITS)
mutant("trainer", "a shard begins a sample early", f"{TRAINER}/replicas.py", "shard.part(end - size, end)",
       "shard.part(end - size, end) if end == size else shard.part(end - size - 1, end - 1)",
       SAME_BITS.replace("3 replicas", "one without samples"))
mutant("trainer", "accumulated samples count once", f"{TRAINER}/dp_train.py",
       "usual = replicas * micro_batch * accumulate", "usual = replicas * micro_batch",
       f"{DP_TRAIN}::test_accumulating_equals_larger_micro_batches",
       f"{DP_TRAIN}::test_one_replica_is_the_hand_written_loop[cpu]")
mutant("trainer", "every pass in one order", f"{TRAINER}/samples.py", "(turn & _LOW32, _ORDERS", "(0, _ORDERS",
       "parallel/trainer/test_order.py::test_every_pass_has_every_sample_once_in_an_order_of_its_own")
mutant("trainer", "what comes next is not made ahead", f"{TRAINER}/trainer.py", "range(k + 1, until)", "range(0)",
       "data/test_training_data.py::test_samples_are_made_while_devices_work")
mutant("trainer", "start counts the workers of one rank", f"{TRAINER}/dp_train.py", "sum(ranks.gather(mine))", "mine",
       "data/test_training_data.py::test_a_cycle_of_start_is_a_pass_whatever_the_ranks")
mutant("trainer", "a stack counts once", f"{TRAINER}/samples.py", "return sum(self.weights)", "return self.weights[0]",
       "parallel/trainer/test_stacks.py::test_samples_that_count_unlike_are_passed_one_by_one")
mutant("trainer", "weights of a callback are lost", f"{TRAINER}/trainer.py", "self.optimizers.take(weights)", "pass",
       "parallel/trainer/test_callbacks.py::test_weights_that_a_callback_sets_are_kept[cpu-clip]")
mutant("trainer", "a leaf that is left over counts", "ag/training/evaluation.py",
       "isinstance(leaf, (_Spare, _WeightedSpare))", "False",
       "training/test_fit.py::test_any_number_of_devices_computes_the_same_bits",
       "training/test_fit.py::test_a_leaf_that_is_left_over_counts_nothing")
mutant("trainer", "batches count alike in a metric", "ag/training/metrics.py", "value * count)", "value * 1)",
       "training/test_metrics.py::test_means_are_over_samples[7]")
mutant("trainer", "patience is one longer", "ag/training/callbacks.py", "since >= self.patience",
       "since > self.patience",
       "training/test_callbacks.py::test_early_stopping[two in a row]")
mutant("trainer", "an interrupted step is noted twice", "ag/training/fit.py", "step.step == self._next", "True",
       "training/test_fit.py::test_an_interrupted_training_goes_on[metric-2-1]")
mutant("random stream", "further draws of a sample share streams", f"{TRAINER}/samples.py",
       "_BEYOND + self.number * _EACH", "_BEYOND",
       "parallel/trainer/test_stacks.py::test_samples_may_draw_differently_often[cpu-[1, 2, 2, 2, 1, 3]]")
mutant("trainer", "buffers do not move", f"{TRAINER}/trainer.py", "self._buffers + moved", "self._buffers",
       "parallel/trainer/test_model_buffers.py::test_a_step_moves_them_by_the_mean_over_its_samples[cpu]")
mutant("trainer", "what spoils a step stays in the row", f"{TRAINER}/trainer.py", "replica.begin_anew()",
       "replica.buffers.begin()",
       "parallel/trainer/test_kept.py::test_weights_beyond_float32_spoil_no_later_step")
mutant("trainer", "the mean lies in a row that others need", f"{TRAINER}/trainer.py", "len(devices) == ranks.size == 1",
       "ranks.size == 1", "parallel/trainer/test_refused.py::test_a_nan_names_replica_step_and_parameter[cpu]")
mutant("trainer", "what was sent follows what the host has", f"{TRAINER}/host_optimizer.py",
       "copy_on_write(self.values, get_ident())", "self.values",
       "parallel/trainer/test_callbacks.py::test_the_host_and_a_model_may_be_set_at_once[1-one-eager]")
mutant("trainer", "a replay does not say that it writes what is lent", f"{TRAINER}/host_optimizer.py",
       "note_written(*self._written)", "pass",
       "parallel/trainer/test_several_optimizers.py::test_weights_that_are_lent_stay")
mutant("trainer", "nobody hears that the host has written to replicas", f"{TRAINER}/host_optimizer.py",
       "self._written += group.values, group.stored", "pass",
       "parallel/trainer/test_callbacks.py::test_a_loss_of_weights_that_have_changed_has_no_gradients[2]")
mutant("trainer", "parameters of 16 bits stay behind", f"{TRAINER}/host_optimizer.py",
       "if group.stored is not group.values:", "if False:",
       "parallel/trainer/test_callbacks.py::test_all_models_are_alike_after_a_step[2-f16]")
mutant("trainer", "weights that a function has set outlast the step", f"{TRAINER}/replica.py",
       "self.group.adopt(keep=False)", "self.group.adopt()",
       "parallel/trainer/test_callbacks.py::test_weights_that_a_function_sets_are_gone_after_the_step[1]")
mutant("reduction tree", "a total lies with the partial sums", "ag/parallel/comm/tree_reduction.py",
       "additions[-1] = *additions[-1][:2], total", "pass",
       "parallel/comm/test_add_up.py::test_rows_are_added_up_as_in_the_tree[numpy-3-1]")
mutant("reduction tree", "a partial sum is overwritten", "ag/parallel/comm/tree_reduction.py",
       "free.extend(x for x in (right, left) if x >= total)", "free.append(total)",
       "parallel/comm/test_add_up.py::test_rows_are_added_up_as_in_the_tree[numpy-3-1]")
mutant("reduction tree", "what is large is taken for infinite", "ag/parallel/comm/tree_reduction.py",
       " or bool(np.isfinite(total).all())", "",
       "parallel/comm/test_add_up.py::test_what_is_finite_may_have_a_sum_that_is_not[numpy-float32]")
mutant("trainer", "calls that wait for each other share a thread", "ag/parallel/comm/device_threads.py",
       "[] if wait else ", "",
       "parallel/comm/test_device_threads.py::test_more_cpu_devices_than_cores_share_threads[1-expected0]")
mutant("reduction tree", "nodes join wherever they lie", "ag/parallel/comm/tree_reduction.py",
       "and self.nodes[-1][0] % (2 * count) == 0:", ":",
       "parallel/comm/test_add_up.py::test_any_shards_make_the_same_additions")
mutant("reduction tree", "the rest is added from the left", "ag/parallel/comm/tree_reduction.py",
       "reversed(self.nodes[:-1])", "self.nodes[:-1]",
       "parallel/comm/test_add_up.py::test_any_shards_make_the_same_additions",
       "parallel/comm/test_add_up.py::test_the_tree_is_balanced")
RANKS = "parallel/elastic/test_train_distributed_ranks.py"
mutant("replicas", "gradients of ranks count alike", "ag/parallel/elastic/train_distributed.py",
       "[samples] if samples else []", "[1] if samples else []", f"{RANKS}::test_any_ranks_and_replicas[3-1]")
mutant("replicas", "buffers of ranks differ", "ag/parallel/elastic/train_distributed.py",
       "self._share_buffers(comm)", "pass", f"{RANKS}::test_two_ranks_train_as_one_process_does[batch norm]")
mutant("replicas", "messages of ranks have no weight", "ag/parallel/elastic/train_distributed.py",
       "compressed.sending(samples / total)", "compressed.sending(1.0)",
       f"{RANKS}::test_two_ranks_train_as_one_process_does[compressed]")
mutant("replicas", "a lost rank's samples stay lost", "ag/parallel/elastic/train_distributed.py",
       "        self._take_share()\n        self._failed", "        self._failed",
       f"{RANKS}::test_one_rank_of_three[2-1]")
mutant("replicas", "sync batch norm: mean of one replica's samples", "ag/parallel/replicas/data_parallel.py",
       "count = sum(counts)", "count = max(counts)",
       "parallel/replicas/test_sync_batch_norm.py::test_unequal_and_empty_shards")
mutant("replicas", "ZeRO: a shard's bounds", "ag/parallel/replicas/zero.py", "min(max(at - starts[name], 0)",
       "min(max(at, 0)", "parallel/replicas/test_zero.py::test_each_replica_keeps_its_part[2-1]",
       "parallel/replicas/test_zero.py::test_float64_and_eval_mode[1]")
mutant("replicas", "DataParallel: results out of order", "ag/parallel/comm/tensor_collectives.py",
       "return ag_concat(here, dim)", "return ag_concat(here[::-1], dim)",
       "parallel/replicas/test_data_parallel.py::test_scatter_and_gather_undo_each_other[two-3]")
mutant("sharded", "pipeline: too many micro-batches ahead", "ag/parallel/sharded/pipeline.py",
       "min(micros, stages - stage)", "min(micros, stages)",
       "parallel/sharded/test_pipeline.py::test_how_many_micro_batches_a_stage_holds")
mutant("sharded", "pipeline: micro-batches count alike", "ag/parallel/sharded/pipeline.py", "self._shares[micro])",
       "1.0 / len(self._shares))",
       "parallel/sharded/test_pipeline.py::test_gradients_of_the_unsplit_model[cpus-7-3-one-gpipe]")
DEVICE_THREADS = "parallel/comm/test_device_threads.py"
mutant("trainer", "device threads take all cores each", "ag/parallel/comm/device_threads.py",
       "share_cores(self.callers)", "pass", f"{DEVICE_THREADS}::test_each_thread_has_its_part_of_the_cores")
mutant("trainer", "Ctrl-C leaves calls behind", "ag/parallel/comm/device_threads.py",
       "if thread.now is not None], end)", "if False], end)",
       f"{DEVICE_THREADS}::test_an_interrupt_waits_for_the_calls")
mutant("trainer", "a step has the errors of the one before", "ag/parallel/comm/device_threads.py",
       "copy_context().run), tasks[0], []", "copy_context().run), tasks[0], self.failed",
       f"{DEVICE_THREADS}::test_an_error_of_one_step_is_not_that_of_the_next")
mutant("trainer", "a replay that compiled code refuses is made", "ag/capture/step.py",
       "(result := quick(given)) is not NotImplemented:", "(result := quick(given)) is not self:",
       "parallel/trainer/test_faults.py::test_a_replica_that_hangs_after_replays_is_named[0-cpu]")
mutant("trainer", "Ctrl-C leaves a part of a large array", "ag/engine/cpu_threads.py",
       "    except BaseException:\n        out[...] = array\n        raise", "    except ValueError:\n        raise",
       "engine/test_cpu_threads.py::test_an_interrupt_does_not_leave_a_part")
mutant("trainer", "who looks at memory may write to it", "ag/engine/backends/cpu/backend.py",
       "memory.setflags(False)", "pass", "engine/test_look.py::test_on_the_cpu_it_is_the_memory_itself")
mutant("comm", "parts in another order on every rank", "ag/parallel/comm/comm.py", "[part for part, in parts]",
       "[part for part, in parts[self.rank :] + parts[: self.rank]]",
       "parallel/comm/test_comm.py::test_large_sums[threads-3-32768]")
mutant("comm", "broadcast to nowhere", "ag/parallel/comm/comm.py", "{root: [flat]})", "{root: [flat.copy()]})",
       "parallel/comm/test_comm.py::test_broadcast")
mutant("comm", "nobody can refuse a commit of processes", "ag/parallel/comm/mpi.py",
       "return bool(bits[0] & _DONE)", "return bool(bits[0])",
       "parallel/comm/test_mpi.py::test_two_processes")
mutant("comm", "a step is committed without a lost rank", "ag/parallel/comm/threads.py",
       "not group.revoked and all(votes.values())", "all(votes.values())",
       "parallel/comm/test_threads.py::test_a_commit_is_made_by_all_or_by_none")
mutant("comm", "either half of the ranks goes on", "ag/parallel/comm/comm.py",
       "2 * self.size == before.size and 0 not in self.old_ranks", "False",
       "parallel/elastic/test_lost.py::test_half_of_the_ranks_without_the_first_may_not_go_on")

LAUNCH = "tools/launcher/test_launch.py"
START, SWEEP = "tools/launcher/test_start.py", "tools/launcher/test_sweep.py"
mutant("launcher", "a rank outlives its launcher", "ag/tools/launcher/rank.py", 'answer in (END, b"")', "answer == END",
       f"{LAUNCH}::test_a_rank_does_not_outlive_its_launcher")
mutant("launcher", "a rank fails when nobody reads it", "ag/tools/launcher/rank.py", "in (errno.EIO, errno.EPIPE)",
       "in ()", f"{LAUNCH}::test_a_script_goes_on_when_nobody_reads_it[pipe-]")
CONTACT = "tools/launcher/test_contact.py"
mutant("launcher", "a proof is not compared", "ag/tools/launcher/launch.py", "compare_digest(given, proof",
       "bool(proof", f"{CONTACT}::test_a_wrong_proof_ends_the_connection[a recorded proof]")
mutant("launcher", "strangers are kept", "ag/tools/launcher/launch.py", "if len(self._strangers) > _STRANGERS:",
       "if False:", f"{CONTACT}::test_hostile_connections_change_nothing[500]")
mutant("launcher", "strangers stay for ever", "ag/tools/launcher/launch.py", "monotonic() - rank.heard > _PROVE",
       "False", f"{CONTACT}::test_a_stranger_that_is_silent_has_to_go")
mutant("launcher", "nested brackets end the launcher", "ag/tools/launcher/launch.py", ", RecursionError):", "):",
       f"{CONTACT}::test_a_wrong_message_of_a_rank_ends_its_connection_alone[line0]")
mutant("launcher", "any launcher is believed", "ag/tools/launcher/rank.py",
       "hmac.compare_digest(_receive(connection, PROOF, end), proof", "bool(proof",
       f"{CONTACT}::test_a_rank_does_not_believe_another_launcher")
mutant("launcher", "a folder open to others is a rank's", "ag/tools/launcher/rank.py", "elif found.st_mode & 0o077:",
       "elif False:", f"{LAUNCH}::test_a_folder_that_is_no_rank_s_own_is_refused[open to others]")
mutant("launcher", "half of the hosts go on", "ag/tools/launcher/launch.py", "2 * left <= len(last)",
       "2 * left < len(last)", f"{LAUNCH}::test_more_than_half_of_the_last_hosts_must_answer")
mutant("launcher", "done, whatever another rank says", "ag/tools/launcher/launch.py",
       '"failed", "left", "done", "lost"', '"done", "failed", "left", "lost"', f"{LAUNCH}::test_the_verdict")
SWEEP = "tools/launcher/test_sweep.py"
mutant("launcher", "a launcher that is there is swept", "ag/tools/launcher/hosts.py",
       "flock(file, LOCK_EX | LOCK_NB)\n                    left", "left",
       f"{SWEEP}::test_a_killed_launchers_job_is_swept")
mutant("launcher", "a job of another TMPDIR stays", "ag/tools/launcher/hosts.py", "{*left.folders, *folders_of(job)}",
       "folders_of(job)", f"{SWEEP}::test_a_job_of_another_tmpdir_is_swept")
mutant("launcher", "one TMPDIR is swept", "ag/tools/launcher/hosts.py", "map(Path, _places())",
       "[Path(tempfile.gettempdir())]", f"{SWEEP}::test_a_job_of_another_tmpdir_is_swept")
mutant("launcher", "a letter is a job's name", "ag/tools/launcher/hosts.py", "if _NAME.fullmatch(job) and ", "if ",
       f"{SWEEP}::test_what_is_no_name_of_a_job_ends_nobody[a]")
mutant("launcher", "a link is a job's folder", "ag/tools/launcher/hosts.py", "and not folder.is_symlink() ", "",
       f"{SWEEP}::test_what_this_user_has_not_made_is_not_believed[a link]")
mutant("launcher", "a lock names any folder", "ag/tools/launcher/hosts.py", "if Path(x).name == _PREFIX + job",
       "if Path(x)", f"{SWEEP}::test_only_folders_of_the_job_are_removed")
mutant("launcher", "a daemon may become a rank", "ag/tools/launcher/hosts.py", " and int(session) != process", "",
       f"{SWEEP}::test_a_process_that_may_become_a_rank")
mutant("launcher", "ranks wait for one that was lost", "ag/tools/launcher/launch.py",
       "if all(rank.progress == JOINED for", "if all(True for",
       f"{START}::test_a_job_that_loses_a_rank_as_it_starts_is_started_again[as it joins]")
mutant("launcher", "a slow start is cut short", "ag/tools/launcher/launch.py",
       "(contacts.answer == LEAVE and contacts.joining)", "contacts.joining",
       f"{START}::test_a_slow_rank_is_waited_for")
mutant("launcher", "ranks wait for one that never called", "ag/tools/launcher/launch.py", "absent & known", "set()",
       f"{START}::test_a_rank_is_lost_before_it_has_called")
mutant("launcher", "the deaf are not told", "ag/tools/launcher/launch.py", "if number is not None and deaf:",
       "if False:", f"{START}::test_a_rank_that_does_not_hear_the_answer_is_signalled")
mutant("launcher", "a handler of SIGTERM is cut short", "ag/tools/launcher/launch.py",
       "number == signal.SIGKILL or dies_of(process, number)", "(number := signal.SIGKILL)",
       f"{START}::test_ranks_that_handle_sigterm_are_not_hurried")
mutant("launcher", "a wait that SIGTERM came before goes on", "ag/tools/launcher/rank.py", "elif self._told == 2:",
       "elif False:", f"{START}::test_sigterm_that_interrupts_nothing_is_heard")
mutant("launcher", "a failure for want of a lost rank is the script's", "ag/tools/launcher/launch.py",
       'rank.outcome._replace(kind="lost")', "rank.outcome",
       f"{START}::test_a_job_that_loses_a_rank_as_it_starts_is_started_again[and others fail for want of it]")
mutant("launcher", "a start that has failed has joined", "ag/parallel/comm/mpi_process.py", "if _begun:",
       "if _process is not None:", f"{START}::test_how_far_a_rank_is")
mutant("comm", "MPI starts with Python's lock", "ag/parallel/comm/mpi_process.py", "if start is None:", "if start:",
       "parallel/comm/test_mpi.py::test_two_processes")
mutant("launcher", "a rank leaves alone", f"{TRAINER}/replicas.py", "any(leaves for *_, leaves in layouts)",
       "layouts[self.rank][2]", "parallel/trainer/test_callbacks.py::test_all_ranks_leave_after_the_same_step[1]")

# ---------------------------------------------------------------------------------------------- numbers and operands

mutant("numbers", "long sums one by one", "ag/engine/kernels/reduce.py", "return x.shape[axis] <= SHORT or",
       "return True or", "engine/kernels/test_sums.py::test_sums_and_means")
mutant("numbers", "no tail of silu", "ag/engine/kernels/activation.py", "far = np.less(z, _FAR)",
       "far = np.less(z, -np.inf)", "ops/test_elementwise.py::test_tails_keep_their_digits")
mutant("numbers", "integers wrap", "ag/engine/kernels/convert.py", "if changed.any():", "if False:",
       "ops/test_operands.py::test_what_an_integer_cannot_hold_is_refused")
mutant("operands", "sizes that are no whole numbers are taken", "ag/engine/shape.py",
       'new = [whole_number(function, "a size", n) for n in new]', "new = [int(n) for n in new]",
       *(f"ops/test_operands.py::test_an_axis_is_a_whole_number[{bad}]" for bad in ("True", "1.0")))
mutant("operands", "whole numbers are computed with where they are alike", "ag/autograd/op.py",
       " and (found[1].is_float or integers):", ":",
       "ops/test_operands_in_c.py::test_ops_do_the_same_without_it[whole numbers]")
mutant("operands", "numbers stay as they are beside tensors that are alike", "ag/autograd/op.py",
       "if has_numbers and params:", "if False:",
       "ops/test_operands_in_c.py::test_ops_do_the_same_without_it[no number]")
mutant("operands", "a vector beside a column is a row", "ag/autograd/operands.py",
       "len(shape) != 1 and (not shape or shape[-1] == 1)", "len(shape) == 99",
       "ops/test_operands.py::test_a_host_vector_is_what_it_fits")
mutant("operands", "a vector and a column make a matrix", "ag/engine/shape.py", "if len(small) == 1 < len(big) and",
       "if len(small) == 99 < len(big) and", "ops/test_operands.py::test_one_axis_and_a_column_make_no_matrix")
mutant("operands", "a parameter is changed where it is recorded", "ag/autograd/operands.py", "if is_recording():",
       "if False:", "autograd/test_operators.py::test_a_parameter_is_not_changed_where_it_is_recorded")

# ---------------------------------------------------------------------------------------------- what is installed

mutant("installed", "a device without kernels counts", "ag/engine/backends/vulkan/__init__.py",
       "    check_kernels()\n", "",
       "engine/backends/test_faults.py::test_a_device_without_kernels_does_not_count[manifest.json]")
mutant("installed", "text is a kernel", "ag/engine/backends/shader/manifest.py", "!= _SPIRV:", "== 99:",
       "engine/backends/test_kernel_files.py::test_what_is_not_whole_is_refused_each_time[a kernel that is text]")
mutant("installed", "a forbidden card is a free one", "ag/tools/doctor.py",
       "os.access(node, os.R_OK | os.W_OK)", "True", "tools/test_graphics_cards.py::test_a_card_of_another_group")
mutant("installed", "one software device is no card", "ag/tools/doctor.py", "if not all(map(is_software, found)):",
       "if not any(map(is_software, found)):", "tools/test_graphics_cards.py::test_a_card[discrete]")
mutant("installed", "the selftest takes NaN for right", "ag/tools/selftest.py", "np.abs(x - right), nan=np.inf)",
       "np.abs(x - right))", "tools/test_selftest.py::test_a_number_that_is_none")
mutant("installed", "the selftest looks at no guard words", "ag/tools/selftest.py",
       "backend.check_guards if backend.arena.guard else", "",
       "tools/test_selftest.py::test_a_kernel_that_writes_outside")
mutant("installed", "the selftest believes a captured step", "ag/tools/selftest.py",
       "x.tobytes() != y.tobytes()", "False", "tools/test_selftest.py::test_a_capture_with_other_bits")
mutant("installed", "a report tells the serial number of a card", "ag/tools/selftest.py", '("uuid", sys.platform)',
       "()", "tools/test_report.py::test_a_report")
mutant("installed", "a report tells the user's name", "ag/tools/selftest.py", "names.add(getpass.getuser())", "pass",
       "tools/test_report.py::test_names_and_paths_are_left_out")
mutant("installed", "a card counts under each of its drivers", "ag/engine/backends/vulkan/devices.py",
       "for device in _once(devices) if", "for device in devices if",
       "limits/test_devices.py::test_the_order_of_a_machine")
mutant("kernel", "a kernel on matrix units leaves the size of subgroups to the driver",
       "ag/engine/backends/vulkan/pipelines.py", "required_subgroup(plan.needs, self._limits))", "0)",
       "limits/test_subgroups.py::test_what_the_driver_is_told[offered]")
mutant("kernel", "float16 takes the place of bfloat16 in three products, too",
       "ag/engine/backends/vulkan/cooperative.py", 'if precision == "medium" and sizes is None',
       "if sizes is None",
       "engine/backends/test_cooperative.py::test_float16_takes_the_place_of_bfloat16_for_medium_alone")
mutant("kernel", "a size of subgroups is required that no pipeline may", "ag/engine/backends/shader/manifest.py",
       "return needs.subgroup if least <= needs.subgroup <= most else 0", "return needs.subgroup",
       "engine/backends/test_subgroups.py::test_a_size_is_required_where_it_is_offered[64-0]")
mutant("kernel", "attention is launched where it does not fit", "ag/engine/backends/vulkan/pipelines.py",
       'longest_sequence=fits["heads"] and ', "longest_sequence=",
       "limits/test_kernels.py::test_attention_is_used_if_its_gradient_fits[9-False]")
mutant("kernel", "a driver that tells how many units there are is not believed",
       "ag/engine/backends/shader/tiles.py", "if device.units:", "if False:",
       "engine/kernels/test_matmul_tiles.py::test_units_are_as_many_as_the_driver_says[info1-40]")

# ---------------------------------------------------------------------------------------------- what is refused

REFUSALS = "engine/backends/test_refusals.py"
mutant("refused", "a full card keeps auto from the CPU", "ag/engine/device.py",
       "except (DeviceError, ArenaError, KernelError) as error:", "except (DeviceError, KernelError) as error:",
       f"{REFUSALS}::test_a_full_card_is_opened_by_nobody[nothing]")
mutant("refused", "what could not be opened keeps its memory", "ag/engine/backends/vulkan/__init__.py",
       "        vars(backend).clear()", "        pass", f"{REFUSALS}::test_a_full_card_keeps_no_memory")
CACHE_FILES = "engine/backends/test_cache_files.py"
mutant("refused", "a cache file of another user is read", "ag/engine/backends/shader/cache_files.py",
       "found.st_uid not in (_ADMINISTRATOR, os.geteuid())", "found.st_uid < 0",
       f"{CACHE_FILES}::test_files_and_folders_of_another_user")
mutant("refused", "a damaged cache reaches the driver", "ag/engine/backends/vulkan/pipelines.py",
       "if content != _MAGIC + sha256(data).digest() + data:", "if not content:",
       f"{CACHE_FILES}::test_damaged_contents[500]")
mutant("refused", "a manager's errors are those of Kompute", "ag/engine/backends/vulkan/kp.py",
       "raise faults.told(error) from error", "raise", f"{REFUSALS}::test_every_call_of_a_manager_is_guarded")
mutant("refused", "no memory is a driver that fails", "ag/engine/backends/vulkan/kp.py",
       "if isinstance(error, MemoryError):", "if error is None:",
       f"{REFUSALS}::test_launches_are_made_once_as_soon_as_they_can_be")
mutant("refused", "a lost device does not compile a kernel", "ag/engine/backends/vulkan/pipelines.py",
       "(MemoryError, manager.faults.lost)", "MemoryError", f"{REFUSALS}::test_a_kernel")
mutant("refused", "a launch in the books fails", "ag/engine/backends/vulkan/stream.py",
       "        with _NO_ROOM:\n", "        if True:\n",
       f"{REFUSALS}::test_launches_are_made_once_as_soon_as_they_can_be")
mutant("refused", "what could not be recorded is started", "ag/engine/backends/vulkan/stream.py",
       "            sequence.end()\n", "", f"{REFUSALS}::test_launches_are_made_once_as_soon_as_they_can_be")
mutant("refused", "times that were not told are lost", "ag/engine/backends/vulkan/stream.py",
       "counts = sequence.get_timestamps()", "counts = [self._batches.popleft(), *sequence.get_timestamps()][1:]",
       f"{REFUSALS}::test_a_profile")

# ----------------------------------------------------------------------------------------- functions, masks, statistics

SPIRV = "engine/backends/test_spirv.py::test_a_chain_has_the_functions_that_it_applies[fused.spv]"
mutant("vocabulary", "a chain has every function", "ag/engine/backends/vulkan/spirv.py",
       "not any(constants.get(n) in used for n in x[3:])", "False", SPIRV)
mutant("vocabulary", "a value comes from a branch that is gone", "ag/engine/backends/vulkan/spirv.py",
       "for pair in pairs if pair[1] not in gone for word", "for pair in pairs for word", SPIRV)
mutant("vocabulary", "what is chosen sends back what is not", "ag/ops/functions.py",
       "return None, run(_keep, mask, g) if need[1]", "return None, run(_drop, mask, g) if need[1]",
       "ops/test_masks.py::test_what_is_not_chosen_sends_exactly_0")
mutant("vocabulary", "a comparison is on the tape", "ag/autograd/op.py", "if True in need and rule is not no_gradient:",
       "if True in need:", "ops/test_masks.py::test_no_gradient_flows_through_questions")
mutant("vocabulary", "a mask of float64 is read as float32", "ag/autograd/operands.py",
       "return converted_on_host(numbers, dtype) if dtype is F64 else numbers", "return numbers",
       "ops/test_masks.py::test_a_mask_is_a_factor_of_0_and_1")
mutant("vocabulary", "a captured mask is numbers", "ag/capture/program.py", "offset // dtype.itemsize, dtype)",
       "offset // dtype.itemsize)", "ops/test_masks.py::test_truth_values_are_numpys[cpu-gt-f32]")
mutant("vocabulary", "the smallest is the largest", "ag/ops/compositions.py", "argmax(ag_scale(x, -1.0), dim",
       "argmax(ag_scale(x, 1.0), dim", "ops/test_masks.py::test_places_of_the_largest")
mutant("vocabulary", "a deviation of 0 sends back NaN", "ag/ops/compositions.py",
       "return where(some, ag_sqrt(where(some, x, 1.0)), 0.0)", "return ag_sqrt(x)",
       "ops/test_statistics.py::test_equal_elements_send_back_0")
mutant("vocabulary", "the exponential of what is large overflows", "ag/ops/compositions.py",
       "largest = where(isfinite(largest), largest, 0.0)", "largest = largest * 0.0",
       "ops/test_statistics.py::test_large_exponents")
mutant("vocabulary", "a product with zeros has no gradient", "ag/ops/reduce.py",
       "run(equal, is_zero, zeros)", "run(equal, zeros, zeros)",
       "ops/test_statistics.py::test_products_with_zeros")

FAMILIES = ("gradient rule", "kernel", "barrier", "pass", "rounding", "random stream", "capture", "tape", "optimizer",
            "scheduler", "data", "checkpoint", "trainer", "reduction tree", "replicas", "sharded", "comm", "launcher",
            "numbers", "operands", "installed", "refused", "vocabulary")
