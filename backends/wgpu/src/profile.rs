//! Times of each op, by the device's own clock.

use trine_backend::Result;

use crate::device::Device;
use crate::pipelines::Dispatch;

/// Dispatches that are timed at most: a query set has room for 4096 timestamps.
const MOST: usize = 2048;

/// What one op took in the last step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpTime {
    /// The shader's name.
    pub name: &'static str,
    /// The dispatch's workgroups.
    pub workgroups: [u32; 3],
    /// Nanoseconds on the device.
    pub nanoseconds: f64,
}

/// Timestamps before and after each dispatch.
pub(crate) struct Profile {
    period: f32,
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    staging: wgpu::Buffer,
    /// The dispatches of the last step.
    dispatches: Vec<(&'static str, [u32; 3])>,
}

impl Profile {
    /// `None` where times are not asked for or the device has none.
    pub(crate) fn new(device: &Device) -> Result<Option<Profile>> {
        let Some(period) = device.timestamp_period else { return Ok(None) };
        let count = 2 * MOST as u32;
        let descriptor = wgpu::QuerySetDescriptor { label: Some("times"), ty: wgpu::QueryType::Timestamp, count };
        let queries = device.device.create_query_set(&descriptor);
        let bytes = 8 * u64::from(count);
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let resolved = device.buffer("times", bytes, usage)?;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = device.buffer("times", bytes, usage)?;
        Ok(Some(Profile { period, queries, resolved, staging, dispatches: Vec::new() }))
    }

    /// Encodes each dispatch in a pass of its own, between two timestamps.
    pub(crate) fn encode(&mut self, encoder: &mut wgpu::CommandEncoder, dispatches: &[Dispatch]) {
        for (at, dispatch) in dispatches.iter().enumerate() {
            let stamp = |offset| (at < MOST).then_some(2 * at as u32 + offset);
            let writes = wgpu::ComputePassTimestampWrites {
                query_set: &self.queries,
                beginning_of_pass_write_index: stamp(0),
                end_of_pass_write_index: stamp(1),
            };
            let timestamp_writes = (at < MOST).then_some(writes);
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            dispatch.encode(&mut pass);
        }
        let count = dispatches.len().min(MOST) as u32;
        if count > 0 {
            encoder.resolve_query_set(&self.queries, 0..2 * count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, 16 * u64::from(count));
        }
        self.dispatches = dispatches.iter().take(MOST).map(|d| (d.name, d.workgroups)).collect();
    }

    /// The times of the last step.
    pub(crate) fn times(&self, device: &Device) -> Result<Vec<OpTime>> {
        let mut stamps = vec![0u64; 2 * self.dispatches.len()];
        device.read_staging(&self.staging, bytemuck::cast_slice_mut(&mut stamps))?;
        let time = |(&(name, workgroups), stamps): (&(&'static str, [u32; 3]), &[u64])| {
            let ticks = stamps[1].saturating_sub(stamps[0]) as f64;
            OpTime { name, workgroups, nanoseconds: ticks * f64::from(self.period) }
        };
        Ok(self.dispatches.iter().zip(stamps.chunks(2)).map(time).collect())
    }
}
