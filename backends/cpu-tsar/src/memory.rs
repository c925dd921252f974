//! Host memory that is asked for politely: too much of it is an error, not an abort.

mod aligned;
mod stream;

use bytemuck::Zeroable;
use bytemuck::allocation::try_zeroed_vec;
use trine_backend::{Error, Result};

pub(crate) use aligned::Aligned;
pub(crate) use stream::Stream;

/// `len` zeros. The system gives large ones lazily: pages that are never touched take no memory and no time.
pub(crate) fn zeros<T: Zeroable>(len: usize, what: &str) -> Result<Vec<T>> {
    try_zeroed_vec(len).map_err(|()| {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::OutOfMemory(format!("no memory for {what}: it takes {} MB", bytes / 1_000_000))
    })
}

/// f32 `[rows, columns]`, row-major, the first of them at the start of a cache line.
#[derive(Debug)]
pub struct Buf {
    rows: usize,
    columns: usize,
    data: Aligned<f32>,
}

impl Buf {
    /// Zeros. Errors if it is empty or takes too much memory.
    pub(crate) fn zeroed(rows: usize, columns: usize) -> Result<Self> {
        if rows == 0 || columns == 0 {
            return Err(Error::Invalid(format!("a buffer of {rows} x {columns} holds nothing")));
        }
        let len = rows.saturating_mul(columns);
        Ok(Buf { rows, columns, data: Aligned::zeroed(len, &format!("a buffer of {rows} x {columns}"))? })
    }

    /// A copy of `data`, rows of `columns`.
    pub(crate) fn from_rows(columns: usize, data: &[f32]) -> Result<Self> {
        if columns == 0 || data.is_empty() || !data.len().is_multiple_of(columns) {
            return Err(Error::Invalid(format!("{} values do not fill rows of {columns}", data.len())));
        }
        let mut buf = Buf::zeroed(data.len() / columns, columns)?;
        buf.front_mut(buf.rows).copy_from_slice(data);
        Ok(buf)
    }

    /// Width of a row.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The first `rows` rows, `[rows, columns]`.
    pub(crate) fn front(&self, rows: usize) -> &[f32] {
        assert!(rows <= self.rows, "{rows} rows of a buffer of {}", self.rows);
        &self.data[..rows * self.columns]
    }

    /// The first `rows` rows, `[rows, columns]`.
    pub(crate) fn front_mut(&mut self, rows: usize) -> &mut [f32] {
        assert!(rows <= self.rows, "{rows} rows of a buffer of {}", self.rows);
        &mut self.data[..rows * self.columns]
    }

    /// One row.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        assert!(row < self.rows, "row {row} of a buffer of {}", self.rows);
        &self.data[row * self.columns..][..self.columns]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_at_a_cache_line() {
        for columns in [1, 3, 16, 1000] {
            let mut buf = Buf::zeroed(3, columns).unwrap();
            assert_eq!(buf.front(3).as_ptr() as usize % 64, 0);
            assert!(buf.front(3).iter().all(|&x| x == 0.0));
            buf.front_mut(3)[columns] = 1.0;
            assert_eq!(buf.row(1)[0], 1.0);
        }
        assert_eq!(Buf::from_rows(2, &[1.0, 2.0, 3.0, 4.0]).unwrap().row(1), [3.0, 4.0]);
    }

    #[test]
    fn impossible_buffers_are_errors() {
        for (rows, columns) in [(usize::MAX, 2), (usize::MAX / 4, 1), (1 << 45, 1 << 10), (usize::MAX, 1)] {
            assert!(matches!(Buf::zeroed(rows, columns), Err(Error::OutOfMemory(_))), "{rows} x {columns}");
        }
        assert!(matches!(Buf::zeroed(0, 1), Err(Error::Invalid(_))));
        assert!(matches!(Buf::from_rows(2, &[1.0]), Err(Error::Invalid(_))));
        assert!(matches!(Buf::from_rows(0, &[]), Err(Error::Invalid(_))));
    }
}
