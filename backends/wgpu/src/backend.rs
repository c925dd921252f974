//! The [`Backend`] trait on a GPU.

use std::sync::Arc;

use trine_backend::recorded::{Plans, Shape};
use trine_backend::{Backend, DeviceInfo, Error, HostMatrix, KvFormat, KvShape, Limits, Result, Row};
use trine_shaders::Shader;

use crate::adapters::Options;
use crate::buffers::Buffer;
use crate::device::Device;
use crate::kv::Cache;
use crate::op::{Buf, Op, Ops, Shared};
use crate::pipelines::Pipelines;
use crate::plan::{CHUNK, Planner};
use crate::profile::{OpTime, Profile};
use crate::recording::{Copy, Recording};
use crate::weights::Matrix;

/// Rows of the largest step: a dispatch has no more workgroups in one direction.
const MOST_ROWS: usize = 65535;

/// Plans that are kept at most: decoding, prefill chunks, and their last pieces.
const MOST_PLANS: usize = 16;

/// Bytes that are copied to learn how fast the memory is.
const COPIED: u64 = 256 << 20;

/// The backend.
pub struct Wgpu {
    device: Device,
    pipelines: Pipelines,
    recordings: Plans<Op, Recording>,
    profile: Option<Profile>,
    /// The step's rows and the selected ones, as `batch.wgsl` lays them out.
    batches: [wgpu::Buffer; 2],
    chunk_sums: Option<wgpu::Buffer>,
    /// What [`Backend::read`] copies into.
    staging: Option<wgpu::Buffer>,
    /// What the last step has copied there by itself.
    copied: Option<Copy>,
    /// The ops of the step that is being recorded.
    ops: Ops,
}

impl Wgpu {
    /// What each dispatch of the last step took; empty unless [`Options::profile`] is set and the device has
    /// timestamps.
    ///
    /// # Errors
    /// The device failed.
    pub fn op_times(&mut self) -> Result<Vec<OpTime>> {
        self.profile.as_ref().map_or(Ok(Vec::new()), |profile| profile.times(&self.device))
    }

    /// Bytes per second of a shader's copy from one device buffer to another, read and written bytes both counted: what
    /// a figure in percent of the memory's speed is measured against. `bytes` is the buffers' size.
    ///
    /// # Errors
    /// The buffers do not fit, or the device failed.
    pub fn copy_bandwidth(&mut self, bytes: u64) -> Result<f64> {
        let from = self.device.storage("the source of a copy", bytes)?;
        let to = self.device.storage("the target of a copy", bytes)?;
        let vectors = (bytes / 16) as usize;
        let rows = vectors.div_ceil(256).div_ceil(1 << 14);
        let params = vec![vectors as u32, 256 << 14];
        let copy =
            self.pipelines.dispatch(&self.device, (Shader::Copy, vec![]), params, &[&from, &to], [1 << 14, rows, 1]);
        let run = |copies: usize| -> Result<f64> {
            let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            (0..copies).for_each(|_| copy.encode(&mut pass));
            drop(pass);
            let commands = encoder.finish();
            let start = std::time::Instant::now();
            self.device.queue.submit([commands]);
            self.device.wait(None)?;
            Ok(start.elapsed().as_secs_f64())
        };
        run(2)?;
        // The difference of two lengths leaves out what a submission costs.
        let (short, long) = (run(5)?, run(25)?);
        Ok(2.0 * 20.0 * bytes as f64 / (long - short))
    }

    /// Brings the step's rows to the device.
    fn send_rows(&self, rows: &[Row]) {
        let kept: Vec<usize> = (0..rows.len()).filter(|&at| rows[at].output).collect();
        let batch = |rows: &mut dyn Iterator<Item = &Row>, kept: &[usize]| {
            let mut words = vec![0, 0, 0, 0];
            for (at, row) in rows.enumerate() {
                words[0] += 1;
                words.extend([row.token, row.sequence, row.position, kept.get(at).map_or(0, |&from| from as u32)]);
            }
            words
        };
        let all = batch(&mut rows.iter(), &kept);
        self.device.queue.write_buffer(&self.batches[0], 0, bytemuck::cast_slice(&all));
        // Where all rows are selected, the same buffer does.
        if kept.len() < rows.len() {
            let selected = batch(&mut rows.iter().filter(|row| row.output), &[]);
            self.device.queue.write_buffer(&self.batches[1], 0, bytemuck::cast_slice(&selected));
        }
    }

    fn run(&mut self, ops: &Arc<[Op]>, shape: Shape) -> Result<()> {
        if self.recordings.find(ops, shape).is_none() {
            let sums = self.chunk_sums.clone();
            let planner = Planner::new(&self.device, &mut self.pipelines, &self.batches, &mut self.chunk_sums, shape);
            let dispatches = planner.plan(ops)?;
            self.device.check()?;
            if sums.is_some() && sums != self.chunk_sums {
                // The others would go on with the smaller one, and keep it.
                self.recordings.forget();
                self.pipelines.forget_groups();
            }
            self.recordings.keep(Arc::clone(ops), shape, Recording::new(dispatches));
        }
        let Some(recording) = self.recordings.find(ops, shape) else {
            return Err(Error::Device("a recording was lost".into()));
        };
        match &mut self.profile {
            None => {
                self.copied = recording.run(&self.device)?;
                Ok(())
            }
            Some(profile) => {
                let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
                profile.encode(&mut encoder, &recording.dispatches);
                self.device.queue.submit([encoder.finish()]);
                self.device.check()
            }
        }
    }
}

impl Backend for Wgpu {
    const NAME: &'static str = "wgpu";
    type Options = Options;
    type Buf = Shared<Buffer>;
    type Weight = Shared<Matrix>;
    type Kv = Shared<Cache>;

    // The ops, each of which is recorded.
    trine_backend::record_ops!(ops);

    fn open(options: &Options) -> Result<Self> {
        let device = Device::open(options)?;
        let bytes = 16 * (MOST_ROWS as u64 + 1);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let batches = [device.buffer("a step's rows", bytes, usage)?, device.buffer("a step's rows", bytes, usage)?];
        Ok(Wgpu {
            profile: Profile::new(&device)?,
            device,
            pipelines: Pipelines::default(),
            recordings: Plans::new(MOST_PLANS),
            batches,
            chunk_sums: None,
            staging: None,
            copied: None,
            ops: Ops::default(),
        })
    }

    fn info(&self) -> DeviceInfo {
        let facts = &self.device.facts;
        let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
        let mut shown = vec![
            ("type".to_owned(), facts.kind.to_owned()),
            ("driver".to_owned(), format!("{}, {}", facts.api, facts.driver)),
            ("largest buffer".to_owned(), format!("{} MiB", self.device.binding_limit >> 20)),
            ("subgroups".to_owned(), yes(self.device.subgroups)),
        ];
        if facts.software {
            shown.push(("warning".to_owned(), "this is no GPU but a program that imitates one: it is slow".to_owned()));
        }
        DeviceInfo { name: facts.name.clone(), facts: shown, free_memory: None }
    }

    fn alloc(&mut self, rows: usize, columns: usize) -> Result<Buf> {
        if rows > MOST_ROWS {
            return Err(Error::Unsupported(format!(
                "steps of {rows} tokens are above the {MOST_ROWS} of the wgpu backend"
            )));
        }
        Ok(Shared::new(Buffer::new(&self.device, rows, columns)?))
    }

    fn upload(&mut self, columns: usize, data: &[f32]) -> Result<Buf> {
        if columns == 0 || data.is_empty() || !data.len().is_multiple_of(columns) {
            return Err(Error::Invalid(format!("{} values do not fill rows of {columns}", data.len())));
        }
        let buffer = Buffer::new(&self.device, data.len() / columns, columns)?;
        self.device.queue.write_buffer(&buffer.floats, 0, bytemuck::cast_slice(data));
        self.device.check()?;
        Ok(Shared::new(buffer))
    }

    fn prepare(&mut self, matrix: HostMatrix<'_>) -> Result<Shared<Matrix>> {
        let matrix = Matrix::new(&self.device, &matrix)?;
        self.device.check()?;
        Ok(Shared::new(matrix))
    }

    fn kv(&mut self, shape: KvShape, format: KvFormat) -> Result<Shared<Cache>> {
        Ok(Shared::new(Cache::new(&self.device, shape, format)?))
    }

    fn step(&mut self, rows: &[Row], record: impl FnOnce(&mut Self)) -> Result<()> {
        if rows.is_empty() || rows.len() > MOST_ROWS {
            return Err(Error::Invalid(format!("a step has 1 to {MOST_ROWS} rows, not {}", rows.len())));
        }
        self.device.check()?;
        self.copied = None;
        self.ops.begin();
        record(self);
        let ops = self.ops.end();
        self.send_rows(rows);
        self.run(&ops, Shape::new(rows, CHUNK))
    }

    fn read(&mut self, buf: &Buf, out: &mut [f32]) -> Result<()> {
        let bytes = 4 * out.len() as u64;
        if self.staging.as_ref().is_none_or(|staging| staging.size() < bytes) {
            let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
            self.staging = Some(self.device.buffer("what is read", bytes, usage)?);
        }
        let Some(staging) = &self.staging else { return Ok(()) };
        let copy = Copy { from: buf.floats.clone(), to: staging.clone(), bytes };
        if self.copied.as_ref() != Some(&copy) {
            let mut encoder = self.device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            copy.encode(&mut encoder);
            self.device.queue.submit([encoder.finish()]);
            // The step that ran last will do this itself when it comes again.
            if let Some(recording) = self.recordings.latest() {
                recording.read = Some(copy.clone());
            }
            self.copied = Some(copy);
        }
        self.device.read_staging(staging, bytemuck::cast_slice_mut(out))
    }

    fn limits(&mut self) -> Result<Option<Limits>> {
        if self.device.facts.software {
            return Ok(None);
        }
        Ok(Some(Limits { copy_bandwidth: self.copy_bandwidth(COPIED)? }))
    }
}
