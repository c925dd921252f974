//! The ops of a step as values, for backends that see the whole step before they run it.
//!
//! Such a backend keeps [`Ops`], has [`record_ops!`](crate::record_ops) write those methods of the trait that are ops, and when the
//! step's closure has returned plans what [`Ops::end`] gives. A plan depends on the ops and on the step's [`Shape`]; both come
//! again, so plans are kept in [`Plans`].

mod op;
mod ops;
mod plans;

use std::ops::Deref;
use std::sync::Arc;

pub use op::{Op, is_needed};
pub use ops::Ops;
pub use plans::{Plans, Shape};

/// Something on the device that ops refer to; equal if it is the same one.
#[derive(Debug)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// The first reference to it.
    pub fn new(value: T) -> Self {
        Shared(Arc::new(value))
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The methods of [`Backend`](crate::Backend) that are ops, its fusions among them, for a type with [`Ops`] in a field of this
/// name: each records its op. To be used in the `impl` of the trait.
///
/// ```
/// use trine_backend::recorded::{Ops, Shared};
/// use trine_backend::{Backend, DeviceInfo, HostMatrix, KvFormat, KvShape, Result, Row};
///
/// type Buf = Shared<Vec<f32>>;
///
/// /// Knows what it is asked for, and does nothing.
/// #[derive(Default)]
/// struct Listener {
///     ops: Ops<Buf, (), ()>,
///     heard: usize,
/// }
///
/// impl Backend for Listener {
///     const NAME: &'static str = "listener";
///     type Options = ();
///     type Buf = Buf;
///     type Weight = ();
///     type Kv = ();
///
///     trine_backend::record_ops!(ops);
///
///     fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
///         self.ops.begin();
///         record(self);
///         self.heard = self.ops.end().len();
///         Ok(())
///     }
/// #   fn open(_: &()) -> Result<Self> { Ok(Listener::default()) }
/// #   fn info(&self) -> DeviceInfo { DeviceInfo::default() }
/// #   fn alloc(&mut self, rows: usize, columns: usize) -> Result<Buf> { Ok(Shared::new(vec![0.0; rows * columns])) }
/// #   fn upload(&mut self, _: usize, data: &[f32]) -> Result<Buf> { Ok(Shared::new(data.to_vec())) }
/// #   fn prepare(&mut self, _: HostMatrix<'_>) -> Result<()> { Ok(()) }
/// #   fn kv(&mut self, _: KvShape, _: KvFormat) -> Result<()> { Ok(()) }
/// #   fn read(&mut self, _: &Buf, _: &mut [f32]) -> Result<()> { Ok(()) }
/// }
///
/// let mut backend = Listener::open(&())?;
/// let (mut out, mut x) = (backend.alloc(1, 8)?, backend.alloc(1, 8)?);
/// let y = backend.alloc(1, 8)?;
/// backend.step(&[], |b| b.add_rms_norm(&mut out, &mut x, &y, &y, 1e-6))?;
/// assert_eq!(backend.heard, 1);
/// # Ok::<(), trine_backend::Error>(())
/// ```
#[macro_export]
macro_rules! record_ops {
    ($ops:ident) => {
        fn embed(&mut self, out: &mut Self::Buf, table: &Self::Weight) {
            self.$ops.next($crate::recorded::Op::Embed { out: &*out, table });
        }

        fn rms_norm(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &Self::Buf, eps: f32) {
            self.$ops.next($crate::recorded::Op::RmsNorm { out: &*out, x, add: None, weight, eps });
        }

        fn add_rms_norm(
            &mut self,
            out: &mut Self::Buf,
            x: &mut Self::Buf,
            y: &Self::Buf,
            weight: &Self::Buf,
            eps: f32,
        ) {
            self.$ops.next($crate::recorded::Op::RmsNorm { out: &*out, x: &*x, add: Some(y), weight, eps });
        }

        fn linear(&mut self, out: &mut Self::Buf, x: &Self::Buf, weight: &Self::Weight) {
            self.$ops.next($crate::recorded::Op::Linear { out: &*out, x, weight });
        }

        fn add_bias(&mut self, x: &mut Self::Buf, bias: &Self::Buf) {
            self.$ops.next($crate::recorded::Op::AddBias { x: &*x, bias });
        }

        fn add(&mut self, x: &mut Self::Buf, y: &Self::Buf) {
            self.$ops.next($crate::recorded::Op::Add { x: &*x, y });
        }

        fn head_norm(
            &mut self,
            qkv: &mut Self::Buf,
            heads: $crate::Heads,
            query: &Self::Buf,
            key: &Self::Buf,
            eps: f32,
        ) {
            self.$ops.next($crate::recorded::Op::HeadNorm { qkv: &*qkv, heads, query, key, eps });
        }

        fn rope(&mut self, qkv: &mut Self::Buf, heads: $crate::Heads, table: &Self::Buf) {
            let (table, cache) = (Some(table), None);
            self.$ops.next($crate::recorded::Op::RopeStoreKv { qkv: &*qkv, heads, table, cache });
        }

        fn store_kv(&mut self, kv: &mut Self::Kv, layer: usize, qkv: &Self::Buf, heads: $crate::Heads) {
            let (table, cache) = (None, Some((&*kv, layer)));
            self.$ops.next($crate::recorded::Op::RopeStoreKv { qkv, heads, table, cache });
        }

        fn rope_store_kv(
            &mut self,
            kv: &mut Self::Kv,
            layer: usize,
            qkv: &mut Self::Buf,
            heads: $crate::Heads,
            table: &Self::Buf,
        ) {
            let (table, cache) = (Some(table), Some((&*kv, layer)));
            self.$ops.next($crate::recorded::Op::RopeStoreKv { qkv: &*qkv, heads, table, cache });
        }

        fn attend(&mut self, out: &mut Self::Buf, qkv: &Self::Buf, kv: &Self::Kv, layer: usize, heads: $crate::Heads) {
            self.$ops.next($crate::recorded::Op::Attend { out: &*out, qkv, cache: kv, layer, heads });
        }

        fn gated(&mut self, out: &mut Self::Buf, gate_up: &Self::Buf, gate: $crate::Gate) {
            self.$ops.next($crate::recorded::Op::Gated { out: &*out, gate_up, gate });
        }

        fn select_outputs(&mut self, out: &mut Self::Buf, x: &Self::Buf) {
            self.$ops.next($crate::recorded::Op::SelectOutputs { out: &*out, x });
        }

        fn discard(&mut self, buf: &mut Self::Buf) {
            self.$ops.next($crate::recorded::Op::Discard { buf: &*buf });
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_equal_to_itself_alone() {
        let first = Shared::new(7);
        assert_eq!((*first, first == first.clone(), first == Shared::new(7)), (7, true, false));
    }
}
