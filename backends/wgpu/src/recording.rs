//! Plans that are kept, and the commands of their next run.

use trine_backend::Result;

use crate::device::Device;
use crate::op::Op;
use crate::pipelines::Dispatch;
use crate::plan::Shape;

/// Plans that are kept at most: decoding, prefill chunks, and their last pieces.
const MOST: usize = 16;

/// What a step's result is read by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Copy {
    pub(crate) from: wgpu::Buffer,
    pub(crate) to: wgpu::Buffer,
    pub(crate) bytes: u64,
}

impl Copy {
    pub(crate) fn encode(&self, encoder: &mut wgpu::CommandEncoder) {
        encoder.copy_buffer_to_buffer(&self.from, 0, &self.to, 0, self.bytes);
    }
}

/// A step that can be run again.
pub(crate) struct Recording {
    ops: Vec<Op>,
    shape: Shape,
    pub(crate) dispatches: Vec<Dispatch>,
    /// What was read after the last run: it is likely to be read again.
    pub(crate) read: Option<Copy>,
    /// Encoded ahead, with the copy at its end.
    next: Option<(wgpu::CommandBuffer, Option<Copy>)>,
    runs: usize,
}

impl Recording {
    pub(crate) fn new(ops: Vec<Op>, shape: Shape, dispatches: Vec<Dispatch>) -> Recording {
        Recording { ops, shape, dispatches, read: None, next: None, runs: 0 }
    }

    /// Runs it and returns the copy that it made for a read. A step that comes again is likely to come once more:
    /// its next commands are encoded while the device is busy with these.
    pub(crate) fn run(&mut self, device: &Device) -> Result<Option<Copy>> {
        let (commands, copied) = self.next.take().unwrap_or_else(|| self.encode(device));
        device.queue.submit([commands]);
        self.runs += 1;
        if self.runs > 1 {
            self.next = Some(self.encode(device));
        }
        device.check()?;
        Ok(copied)
    }

    fn encode(&self, device: &Device) -> (wgpu::CommandBuffer, Option<Copy>) {
        let mut encoder = device.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        self.dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass));
        drop(pass);
        self.read.iter().for_each(|copy| copy.encode(&mut encoder));
        (encoder.finish(), self.read.clone())
    }
}

impl Dispatch {
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        let [x, y, z] = self.workgroups;
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

/// The last plans that were run, the latest last.
#[derive(Default)]
pub(crate) struct Recordings(Vec<Recording>);

impl Recordings {
    /// The recording of these ops, if there is one.
    pub(crate) fn find(&mut self, ops: &[Op], shape: Shape) -> Option<&mut Recording> {
        let at = self.0.iter().rposition(|kept| kept.shape == shape && kept.ops == ops)?;
        let found = self.0.remove(at);
        self.0.push(found);
        self.0.last_mut()
    }

    /// Keeps a new one, and lets go of the one that was used the longest ago.
    pub(crate) fn keep(&mut self, recording: Recording) -> &mut Recording {
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(recording);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// The one that was run last.
    pub(crate) fn latest(&mut self) -> Option<&mut Recording> {
        self.0.last_mut()
    }

    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}
