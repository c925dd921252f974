//! Each fault, the topic that must find it, and the op that must be named.

use trine_backend::conformance::{self, Failure, Report};

use crate::faulty::{Fault, Faulty};

type Topic = fn(&Fault) -> Result<Report, Failure>;

const PREPARED: Topic = conformance::prepared_weights::<Faulty>;
const INTEGERS: Topic = conformance::integer_products::<Faulty>;
const SCALED: Topic = conformance::scaled_products::<Faulty>;
const FLOATS: Topic = conformance::float_ops::<Faulty>;
const ATTENTION: Topic = conformance::attention::<Faulty>;
const BATCHES: Topic = conformance::batch_invariance::<Faulty>;
const MODELS: Topic = conformance::tiny_models::<Faulty>;

/// A test for each line: its name, the fault, the topic and the op.
macro_rules! found {
    ($($name:ident: $fault:ident by $topic:ident in $op:literal;)+) => {
        $(
            #[test]
            fn $name() {
                let failure = $topic(&Fault::$fault).expect_err("the suite passes a faulty backend");
                assert_eq!(failure.op(), $op, "{failure}");
            }
        )+
    };
}

found! {
    saturated_sums: SaturatedSums by INTEGERS in "linear";
    halves_away_from_zero: HalvesAwayFromZero by INTEGERS in "linear";
    shifted_scales: ShiftedScales by INTEGERS in "linear";
    shifted_scales_of_floats: ShiftedScales by SCALED in "linear";
    no_zero_points: NoZeroPoints by INTEGERS in "linear";
    no_tail_columns: NoTailColumns by INTEGERS in "linear";
    no_tail_columns_of_floats: NoTailColumns by SCALED in "linear";
    no_tail_rows: NoTailRows by INTEGERS in "linear";
    token_scales: TokenScales by SCALED in "linear";
    nan_is_zero: NanIsZero by SCALED in "linear";
    swapped_columns: SwappedColumns by INTEGERS in "linear";
    swapped_columns_of_a_table: SwappedColumns by PREPARED in "embed";
    batch_dependent: BatchDependent by BATCHES in "linear";
    batch_dependent_models: BatchDependent by MODELS in "model";
    remembers_batches: RemembersBatches by BATCHES in "linear";
    loses_halves: LosesHalves by BATCHES in "linear";
    loses_rotated: LosesRotated by BATCHES in "rope";
    accumulates: Accumulates by INTEGERS in "linear";
    one_row_too_many: OneRowTooMany by INTEGERS in "linear";
    interleaved_rope: InterleavedRope by FLOATS in "rope";
    interleaved_rope_in_attention: InterleavedRope by ATTENTION in "attend";
    interleaved_rope_in_models: InterleavedRope by MODELS in "model";
    rope_by_row: RopeByRow by FLOATS in "rope";
    rope_by_row_in_models: RopeByRow by MODELS in "model";
    rope_on_values: RopeOnValues by FLOATS in "rope";
    sees_next: SeesNext by ATTENTION in "attend";
    sees_next_in_models: SeesNext by MODELS in "model";
    misses_own: MissesOwn by ATTENTION in "attend";
    misses_own_in_models: MissesOwn by MODELS in "model";
    sees_all: SeesAll by ATTENTION in "attend";
    sees_all_in_batches: SeesAll by BATCHES in "attend";
    sees_all_in_models: SeesAll by MODELS in "model";
    heads_modulo: HeadsModulo by ATTENTION in "attend";
    other_sequence: OtherSequence by ATTENTION in "attend";
    one_layer: OneLayer by ATTENTION in "attend";
    one_layer_in_models: OneLayer by MODELS in "model";
    no_kv_scale: NoKvScale by ATTENTION in "attend";
    f16_is_f32: F16IsF32 by ATTENTION in "attend";
    plain_softmax: PlainSoftmax by ATTENTION in "attend";
    stores_once: StoresOnce by MODELS in "model";
    stores_before_rope: StoresBeforeRope by ATTENTION in "attend";
    no_eps: NoEps by FLOATS in "rms_norm";
    padded_mean: PaddedMean by FLOATS in "rms_norm";
    key_norm_of_queries: KeyNormOfQueries by FLOATS in "head_norm";
    half_relu2: HalfRelu2 by FLOATS in "gated";
    overflowing_silu: OverflowingSilu by FLOATS in "gated";
    keeps_first_rows: KeepsFirstRows by FLOATS in "select_outputs";
    keeps_first_rows_in_models: KeepsFirstRows by MODELS in "model";
    forgets_selection: ForgetsSelection by FLOATS in "select_outputs";
    fusion_loses_sum: FusionLosesSum by FLOATS in "add_rms_norm";
    fusion_uses_old_gate: FusionUsesOldGate by FLOATS in "gated_rms_norm";
}

/// The wrapper itself conforms, and finds every step size recorded in one way.
mod without_fault {
    use super::{Fault, Faulty};

    trine_backend::conformance_tests!(Faulty, Fault::None);
}
