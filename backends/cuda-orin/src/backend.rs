//! The [`Backend`] trait on a GPU.

use std::sync::Arc;

use trine_backend::recorded::{Plans, Shape};
use trine_backend::{
    Backend, Choice, DeviceInfo, Error, Format, HostMatrix, KernelTime, KvFormat, KvShape, Limits, Result, Row,
};
use trine_kernels::args::{self, StepRow};
use trine_kernels::{Kernel, Launch as Extent};

use crate::buffers::Buffer;
use crate::driver::{self, Driver, Launch, Sequence, Transfer};
use crate::explain::explain;
use crate::kv::Cache;
use crate::memory::{HostBytes, Memory, Piece};
use crate::op::{Buf, Op, Ops, Shared};
use crate::options::Options;
use crate::plan::{CHUNK, Planner, Scratch, launch};
use crate::recording::{Recording, Tail};
use crate::weights::Matrix;

/// Rows of the largest step: a grid has no more blocks in one direction.
const MOST_ROWS: usize = 65535;
/// Plans that are kept at most: decoding at several depths, prefill chunks, and their last pieces.
const MOST_PLANS: usize = 24;
/// Bytes of a step's row.
const ROW: usize = size_of::<StepRow>();
/// Bytes that are copied to learn how fast the memory is: much more than any cache holds.
const COPIED: u64 = 512 << 20;

/// The backend.
pub struct CudaOrin {
    // Fields are dropped in this order: graphs before what they use, the device last.
    recordings: Plans<Op, Recording>,
    scratch: Scratch,
    /// The step's rows, then the selected ones; on the host and on the device.
    host_rows: HostBytes,
    rows: Piece,
    /// What [`Backend::read`] and [`Backend::read_largest`] copy into.
    staging: Option<HostBytes>,
    /// The largest values' indices and what finds them.
    largest: Option<Largest>,
    /// What finds them in the buffer that was asked for last, for so many rows.
    finds: Option<(u64, [usize; 2], Tail)>,
    /// The row of the last step, if it had only one, and an output.
    only: Option<StepRow>,
    /// Whether the device has put the most probable token after it, at the next position, in its place; and what that is.
    replaced: bool,
    made: Option<StepRow>,
    /// Whether the device may still be at work.
    busy: bool,
    /// What the last step has brought to the host by itself.
    brought: Option<Tail>,
    /// The ops of the step that is being recorded.
    ops: Ops,
    options: Options,
    memory: Memory,
    driver: Arc<dyn Driver>,
}

/// Where the search for the largest values keeps its results.
struct Largest {
    rows: usize,
    partials: Piece,
    counters: Piece,
}

impl CudaOrin {
    fn wait(&mut self) -> Result<()> {
        if self.busy {
            self.driver.wait()?;
            self.busy = false;
        }
        Ok(())
    }

    /// Puts the step's rows where its first launch takes them from.
    fn write_rows(&mut self, rows: &[Row]) -> Result<()> {
        // The copy of the step before may be under way.
        self.wait()?;
        let mut kept = rows.iter().enumerate().filter(|(_, row)| row.output).map(|(at, _)| at);
        let mut out = self.host_rows.bytes_mut().chunks_exact_mut(ROW);
        let mut write = |row: StepRow| {
            if let Some(out) = out.next() {
                out.copy_from_slice(args::Args::bytes(&row));
            }
        };
        rows.iter().for_each(|row| write(word(row, kept.next().unwrap_or(0))));
        rows.iter().filter(|row| row.output).for_each(|row| write(word(row, 0)));
        Ok(())
    }

    /// Brings so many rows to the device: a launch, which the next one need not wait long for, as it would for a copy
    /// of the driver's.
    fn bring_rows(&self, count: usize) -> Result<Launch> {
        let (from, to) = (self.host_rows.address() as u64, self.rows.address());
        let arguments = args::Copy16 { from, to, vectors: count as u64 };
        let extent = Extent::copy(count.div_ceil(256));
        let extent = extent.ok_or_else(|| Error::Device("a step without rows".into()))?;
        launch(&self.driver, |overlap| Kernel::plain("copy", overlap), extent, &arguments, "rows".into(), 0)
    }

    fn run(&mut self, rows: &[Row], ops: &Arc<[Op]>, once: bool) -> Result<()> {
        let shape = Shape::new(rows, CHUNK);
        let only = rows.first().filter(|row| rows.len() == 1 && row.output).map(|row| word(row, 0));
        let made = self.made.take().is_some_and(|row| Some(row) == only);
        self.only = only;
        self.write_rows(rows)?;
        if once || self.recordings.find(ops, shape).is_none() {
            let mut launches = vec![self.bring_rows(shape.rows + shape.outputs)?];
            let planner = Planner {
                driver: &self.driver,
                memory: &self.memory,
                scratch: &mut self.scratch,
                steps: [self.rows.address(), self.rows.address() + (ROW * rows.len()) as u64],
                shape,
                rows_per_thread: self.options.rows,
            };
            let plan = planner.plan(ops)?;
            launches.extend(plan.launches);
            if plan.invalidates {
                self.recordings.forget();
            }
            if once {
                self.driver.start(&Sequence { launches, fetch: None })?;
                self.busy = true;
                return Ok(());
            }
            self.recordings.keep(Arc::clone(ops), shape, Recording::new(launches, plan.selected_rows));
        }
        let Some(recording) = self.recordings.find(ops, shape) else {
            return Err(Error::Device("a recording was lost".into()));
        };
        self.busy = true;
        recording.run(&self.driver, made)?;
        self.replaced = recording.tail.as_ref().is_some_and(|tail| tail.replaces);
        self.brought.clone_from(&recording.tail);
        Ok(())
    }

    /// Brings what `tail` says to the host, unless the last step has done so; the step that ran last will do it by itself
    /// when it comes again.
    fn bring(&mut self, tail: Tail) -> Result<()> {
        if self.brought.as_ref() != Some(&tail) {
            let sequence = Sequence { launches: tail.launches.clone(), fetch: tail.fetch };
            self.busy = true;
            self.driver.start(&sequence)?;
            self.replaced |= tail.replaces;
            if let Some(recording) = self.recordings.latest() {
                recording.tail = Some(tail.clone());
            }
            self.brought = Some(tail);
        }
        self.wait()
    }

    /// The address of `bytes` of host memory.
    fn staging(&mut self, bytes: usize) -> Result<usize> {
        if self.staging.as_ref().is_none_or(|staging| staging.len() < bytes) {
            self.wait()?;
            // Recordings copy into the smaller one.
            self.recordings.forget();
            self.brought = None;
            self.finds = None;
            self.staging = Some(HostBytes::new(&self.driver, bytes.next_power_of_two())?);
        }
        Ok(self.staging.as_ref().map_or(0, HostBytes::address))
    }

    fn staged(&self, bytes: usize) -> &[u8] {
        self.staging.as_ref().map_or(&[], |staging| &staging.bytes()[..bytes])
    }

    /// What finds the largest values of `rows` rows of `buf`; `replaces`: and makes the next step's row of the first one.
    fn find_largest(&mut self, buf: &Buf, rows: usize, replaces: bool) -> Result<Tail> {
        const BLOCKS: usize = 128;
        let host = self.staging(4 * rows)?;
        let shape = [rows, buf.columns];
        if let Some((address, of, tail)) = &self.finds
            && (*address, *of, tail.replaces) == (buf.floats.address(), shape, replaces)
        {
            return Ok(tail.clone());
        }
        if self.largest.as_ref().is_none_or(|largest| largest.rows < rows) {
            self.wait()?;
            self.recordings.forget();
            self.brought = None;
            self.finds = None;
            let what = "indices of the largest values";
            let piece = |bytes: usize| self.memory.zeros(what, bytes as u64);
            let (partials, counters) = (piece(8 * BLOCKS * rows)?, piece(4 * rows)?);
            self.largest = Some(Largest { rows, partials, counters });
        }
        let Some(Largest { partials, counters, .. }) = &self.largest else {
            return Err(Error::Device("the place of an index was lost".into()));
        };
        let extent = Extent::argmax(buf.columns, rows).filter(|extent| extent.grid[0] as usize <= BLOCKS);
        let extent = extent.ok_or_else(|| Error::Unsupported(format!("{rows} rows to find the largest values of")))?;
        let arguments = args::Argmax {
            x: buf.floats.address(),
            partials: partials.address(),
            counters: counters.address(),
            // The device writes to the host's memory by itself.
            out: host as u64,
            next: if replaces { self.rows.address() } else { 0 },
            columns: buf.columns as u32,
            unused: 0,
        };
        let kernel = |overlap| Kernel::plain("argmax", overlap);
        let launch = launch(&self.driver, kernel, extent, &arguments, format!("argmax {}", buf.columns), 0)?;
        let tail = Tail { launches: vec![launch], fetch: None, replaces };
        self.finds = Some((buf.floats.address(), shape, tail.clone()));
        Ok(tail)
    }
}

impl Backend for CudaOrin {
    const NAME: &'static str = "cuda-orin";
    type Options = Options;
    type Buf = Shared<Buffer>;
    type Weight = Shared<Matrix>;
    type Kv = Shared<Cache>;

    // The ops, each of which is recorded.
    trine_backend::record_ops!(ops);

    fn open(options: &Options) -> Result<Self> {
        let driver = driver::open(options)?;
        let memory = Memory::new(Arc::clone(&driver), !driver.facts().emulated);
        let bytes = 2 * ROW * MOST_ROWS;
        Ok(CudaOrin {
            recordings: Plans::new(MOST_PLANS),
            scratch: Scratch::default(),
            host_rows: HostBytes::new(&driver, bytes)?,
            rows: memory.zeros("a step's rows", bytes as u64)?,
            staging: None,
            largest: None,
            finds: None,
            only: None,
            replaced: false,
            made: None,
            busy: true,
            brought: None,
            ops: Ops::default(),
            options: options.clone(),
            memory,
            driver,
        })
    }

    fn info(&self) -> DeviceInfo {
        let facts = self.driver.facts();
        let version = |number: u32, unit: u32| format!("{}.{}", number / unit, number % unit);
        let overlaps = if facts.overlaps() { "yes" } else { "no, from compute capability 9.0 on" };
        let mut shown = vec![
            ("compute capability".to_owned(), version(facts.capability, 10)),
            ("multiprocessors".to_owned(), facts.multiprocessors.to_string()),
            (
                "GPU memory".to_owned(),
                format!("{} MiB{}", facts.memory >> 20, if facts.unified { ", the host's" } else { "" }),
            ),
            ("L2 cache".to_owned(), format!("{} KiB", facts.cache >> 10)),
            ("driver".to_owned(), format!("CUDA {}", version(facts.driver / 10, 100))),
            ("compiler of kernels".to_owned(), self.driver.compiler()),
            ("overlapped launches".to_owned(), overlaps.to_owned()),
        ];
        if facts.emulated {
            shown =
                vec![("warning".to_owned(), "this is no GPU but a program that imitates one: it is slow".to_owned())];
        }
        // What is free of memory that is the host's, the host knows better: the driver leaves out what caches hold.
        let free = if facts.unified || facts.emulated { None } else { self.driver.free().ok() };
        DeviceInfo { name: facts.name.clone(), facts: shown, free_memory: free }
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Buf> {
        if rows > MOST_ROWS {
            return Err(Error::Unsupported(format!(
                "steps of {rows} tokens are above the {MOST_ROWS} of the cuda-orin backend"
            )));
        }
        Ok(Shared::new(Buffer::new(&self.memory, rows, columns)?))
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Buf> {
        if columns == 0 || data.is_empty() || !data.len().is_multiple_of(columns) {
            return Err(Error::Invalid(format!("{} values do not fill rows of {columns}", data.len())));
        }
        let buffer = Buffer::new(&self.memory, data.len() / columns, columns)?;
        buffer.floats.write(0, bytemuck::cast_slice(data))?;
        Ok(Shared::new(buffer))
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<Shared<Matrix>> {
        Ok(Shared::new(Matrix::new(&self.memory, &matrix)?))
    }

    fn explain(&self, rows: usize, columns: usize, format: Format, tokens: usize) -> Vec<Choice> {
        explain((rows, columns), format, tokens, self.options.rows, self.driver.facts())
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<Shared<Cache>> {
        Ok(Shared::new(Cache::new(&self.memory, shape, format)?))
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        self.take_step(rows, record, false)
    }

    fn step_once(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        self.take_step(rows, record, true)
    }

    fn read(&mut self, buf: &Buf, out: &mut [f32]) -> Result<()> {
        let bytes = 4 * out.len();
        let host = self.staging(bytes)?;
        let fetch = Some(Transfer { host, device: buf.floats.address(), bytes });
        self.bring(Tail { launches: Vec::new(), fetch, replaces: false })?;
        bytemuck::cast_slice_mut(out).copy_from_slice(self.staged(bytes));
        Ok(())
    }

    fn read_largest(&mut self, buf: &Buf, columns: usize, out: &mut [Option<u32>]) -> Result<()> {
        assert_eq!(columns, buf.columns, "read_largest: the rows' columns");
        // Most often the next step runs that token.
        let replaces = out.len() == 1 && self.only.is_some();
        let mut tail = self.find_largest(buf, out.len(), replaces)?;
        if self.replaced && self.brought.as_ref() != Some(&tail) {
            // Once is enough.
            tail = self.find_largest(buf, out.len(), false)?;
        }
        let replaces = tail.replaces;
        self.bring(tail)?;
        let bytes = 4 * out.len();
        for (out, word) in out.iter_mut().zip(self.staged(bytes).chunks_exact(4)) {
            let index = u32::from_le_bytes(word.try_into().unwrap_or_default());
            // Where no value is above -inf there is no index.
            *out = Some(index).filter(|&index| index < columns as u32);
        }
        if replaces {
            self.made = match (self.only, &*out) {
                (Some(row), [Some(token)]) => Some(StepRow { token: *token, position: row.position + 1, ..row }),
                _ => None,
            };
        }
        Ok(())
    }

    fn limits(&mut self) -> Result<Option<Limits>> {
        /// Blocks for each multiprocessor: which number is best differs between devices.
        const BLOCKS: [usize; 4] = [8, 32, 128, 512];
        const COPIES: usize = 4;
        if self.driver.facts().emulated {
            return Ok(None);
        }
        let [from, to] = [(), ()].map(|()| self.memory.zeros("what is copied to learn the memory's speed", COPIED));
        let (from, to) = (from?, to?);
        let arguments = args::Copy16 { from: from.address(), to: to.address(), vectors: COPIED / 16 };
        let kernel = |overlap| Kernel::plain("copy", overlap);
        let mut launches = Vec::new();
        for extent in
            BLOCKS.iter().filter_map(|blocks| Extent::copy(blocks * self.driver.facts().multiprocessors as usize))
        {
            let copy = launch(&self.driver, kernel, extent, &arguments, "copy".into(), 2 * COPIED)?;
            launches.extend(std::iter::repeat_n(copy, COPIES));
        }
        self.wait()?;
        let times = self.driver.time(&Sequence { launches, fetch: None })?;
        let best = times.into_iter().fold(f64::INFINITY, f64::min);
        Ok(Some(Limits { copy_bandwidth: 2.0 * COPIED as f64 / (best / 1e9) }))
    }

    fn profile(&mut self) -> Result<Vec<KernelTime>> {
        self.wait()?;
        let Some(recording) = self.recordings.latest() else { return Ok(Vec::new()) };
        let sequence = recording.sequence(false);
        // They make the step's row anew.
        (self.brought, self.only, self.made) = (None, None, None);
        let times = self.driver.time(&sequence)?;
        let time = |(launch, nanoseconds): (Launch, f64)| KernelTime {
            kernel: launch.label,
            nanoseconds,
            bytes: launch.bytes,
        };
        Ok(sequence.launches.into_iter().zip(times).map(time).collect())
    }
}

impl CudaOrin {
    fn take_step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self), once: bool) -> Result<()> {
        if rows.is_empty() || rows.len() > MOST_ROWS {
            return Err(Error::Invalid(format!("a step has 1 to {MOST_ROWS} rows, not {}", rows.len())));
        }
        self.brought = None;
        self.ops.begin();
        record(self);
        let ops = self.ops.end();
        if once {
            // What it works on is not kept.
            self.ops.forget();
        }
        self.run(rows, &ops, once)
    }
}

/// A row as launches read it; `source` is the one that a selection takes for the output of its number.
fn word(row: &Row, source: usize) -> StepRow {
    StepRow { token: row.token, sequence: row.sequence, position: row.position, source: source as u32 }
}

impl Drop for CudaOrin {
    fn drop(&mut self) {
        // What launches use is freed next.
        let _ = self.driver.wait();
    }
}
