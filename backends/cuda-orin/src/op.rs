//! What a step's closure asked for, before it is planned.

use trine_backend::recorded;

pub(crate) use trine_backend::recorded::{Shared, is_needed};

use crate::buffers::Buffer;
use crate::kv::Cache;
use crate::weights::Matrix;

pub(crate) type Buf = Shared<Buffer>;

/// One op of a step.
pub(crate) type Op = recorded::Op<Buf, Shared<Matrix>, Shared<Cache>>;

/// The ops of a step as they come.
pub(crate) type Ops = recorded::Ops<Buf, Shared<Matrix>, Shared<Cache>>;
