//! A plan that is kept, and the commands of its next run.

use trine_backend::Result;

use crate::device::Device;
use crate::pipelines::Dispatch;

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
    pub(crate) dispatches: Vec<Dispatch>,
    /// What was read after the last run: it is likely to be read again.
    pub(crate) read: Option<Copy>,
    /// Encoded ahead, with the copy at its end.
    next: Option<(wgpu::CommandBuffer, Option<Copy>)>,
    runs: usize,
}

impl Recording {
    pub(crate) fn new(dispatches: Vec<Dispatch>) -> Recording {
        Recording { dispatches, read: None, next: None, runs: 0 }
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
