//! The opened device: its limits, its memory, and what goes wrong on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trine_backend::{Error, Result};
use wgpu::util::DeviceExt;

use crate::adapters::{self, AdapterFacts, Options};

/// The most that one binding may be: shaders address bytes with 32 bits, and some drivers with 31.
const LARGEST_BINDING: u64 = 1 << 30;

/// Before and after the time at which a result is expected, the device is asked for it again and again.
const AWAKE: Duration = Duration::from_micros(200);

/// A device and its queue.
pub(crate) struct Device {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) facts: AdapterFacts,
    /// Bytes of the largest binding.
    pub(crate) binding_limit: u64,
    pub(crate) subgroups: bool,
    /// Nanoseconds of a timestamp's unit, where times are kept.
    pub(crate) timestamp_period: Option<f32>,
    /// Stand for buffers that a shader writes where it is asked to, and where it is not.
    unused: [wgpu::Buffer; 3],
    /// What the last wait for a result took.
    usual_wait: Mutex<Duration>,
    faults: Faults,
}

impl Device {
    pub(crate) fn open(options: &Options) -> Result<Device> {
        let adapter = adapters::choose(options.device.as_deref())?;
        let facts = adapters::facts(&adapter);
        let features = adapter.features();
        let subgroups = facts.subgroups && !options.without_subgroups;
        let timestamps = options.profile && features.contains(wgpu::Features::TIMESTAMP_QUERY);
        let mut wanted = wgpu::Features::empty();
        wanted.set(wgpu::Features::SUBGROUP, subgroups);
        wanted.set(wgpu::Features::TIMESTAMP_QUERY, timestamps);
        let limits = limits(&facts.name, &adapter.limits())?;
        let binding_limit =
            limits.max_storage_buffer_binding_size.min(limits.max_buffer_size).min(LARGEST_BINDING) & !255;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("trine"),
            required_features: wanted,
            required_limits: limits,
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| Error::Device(format!("{} can't be opened: {}", facts.name, one_line(&error))))?;
        let faults = Faults::watch(&device, &facts.name);
        let unused = [(); 3].map(|()| {
            let usage = wgpu::BufferUsages::STORAGE;
            let label = Some("unused");
            device.create_buffer(&wgpu::BufferDescriptor { label, size: 16, usage, mapped_at_creation: false })
        });
        Ok(Device {
            unused,
            binding_limit: options.binding_limit.map_or(binding_limit, |limit| limit.min(binding_limit)),
            timestamp_period: timestamps.then(|| queue.get_timestamp_period()),
            device,
            queue,
            facts,
            subgroups,
            usual_wait: Mutex::default(),
            faults,
        })
    }

    /// A zeroed storage buffer. `what` it is for is named where it can't be had.
    pub(crate) fn storage(&self, what: &str, bytes: u64) -> Result<wgpu::Buffer> {
        if bytes > self.binding_limit {
            return Err(Error::Unsupported(format!(
                "{what} takes {bytes} bytes in one piece, and {} has buffers of at most {}",
                self.facts.name, self.binding_limit
            )));
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        self.buffer(what, bytes, usage)
    }

    /// A buffer of any use.
    pub(crate) fn buffer(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer> {
        let size = bytes.max(16).next_multiple_of(16);
        let descriptor = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        self.check().map_err(|error| match error {
            Error::OutOfMemory(_) => {
                Error::OutOfMemory(format!("{} has no {bytes} bytes left for {what}", self.facts.name))
            }
            other => other,
        })?;
        Ok(buffer)
    }

    /// The constants of an op.
    pub(crate) fn uniform(&self, words: &[u32]) -> wgpu::Buffer {
        let mut words = words.to_vec();
        words.resize(words.len().next_multiple_of(4), 0);
        let contents = bytemuck::cast_slice(&words);
        let usage = wgpu::BufferUsages::UNIFORM;
        self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor { label: Some("params"), contents, usage })
    }

    /// Buffers for bindings that a shader declares and does not use this time.
    pub(crate) fn unused(&self) -> [&wgpu::Buffer; 3] {
        self.unused.each_ref()
    }

    /// Waits until a submission, or all of them, are done.
    pub(crate) fn wait(&self, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let poll = wgpu::PollType::Wait { submission_index: submission, timeout: None };
        let polled = self.device.poll(poll);
        self.check()?;
        polled.map_err(|error| Error::Device(format!("{}: {}", self.facts.name, one_line(&error))))?;
        Ok(())
    }

    /// Waits for all that was submitted, as a step's result is waited for: who sleeps until the device is done is woken
    /// some 50 us later, so that the last of a wait that takes as long as the one before is spent asking.
    fn wait_for_result(&self) -> Result<()> {
        if self.facts.software {
            return self.wait(None);
        }
        let start = Instant::now();
        let usual = self.usual_wait();
        let asleep = usual.saturating_sub(AWAKE);
        let poll = wgpu::PollType::Wait { submission_index: None, timeout: Some(asleep) };
        // Whatever this one tells, the wait at the end tells too.
        let mut done = asleep > Duration::ZERO && self.device.poll(poll).is_ok();
        while !done && start.elapsed() < usual + AWAKE {
            std::hint::spin_loop();
            done = self.device.poll(wgpu::PollType::Poll).map_or(true, |status| status.is_queue_empty());
        }
        self.wait(None)?;
        *self.usual_wait.lock().unwrap_or_else(PoisonError::into_inner) = start.elapsed();
        Ok(())
    }

    fn usual_wait(&self) -> Duration {
        *self.usual_wait.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the device and copies what a buffer for reading holds.
    pub(crate) fn read_staging(&self, staging: &wgpu::Buffer, out: &mut [u8]) -> Result<()> {
        if out.is_empty() {
            return self.wait(None);
        }
        let failed = |what: &dyn std::error::Error| {
            let text = format!("{}: its memory can't be read: {}", self.facts.name, one_line(what));
            self.check().err().unwrap_or(Error::Device(text))
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        let range = 0..out.len() as u64;
        staging.map_async(wgpu::MapMode::Read, range.clone(), move |mapped| {
            // The receiver is gone if waiting failed, and that failure is told.
            let _ = sender.send(mapped);
        });
        self.wait_for_result()?;
        receiver.try_recv().map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let view = staging.get_mapped_range(range).map_err(|error| failed(&error))?;
        out.copy_from_slice(&view);
        drop(view);
        staging.unmap();
        Ok(())
    }

    /// What has gone wrong since it was last asked.
    pub(crate) fn check(&self) -> Result<()> {
        self.faults.take().map_or(Ok(()), Err)
    }
}

/// What shaders need of `available`, with as large buffers as there are.
fn limits(name: &str, available: &wgpu::Limits) -> Result<wgpu::Limits> {
    let promised = wgpu::Limits::default();
    let needs = [
        ("storage buffers", available.max_storage_buffers_per_shader_stage, 8),
        ("bytes of workgroup memory", available.max_compute_workgroup_storage_size, 16384),
        ("threads in a workgroup", available.max_compute_invocations_per_workgroup, 256),
        ("threads in a workgroup's row", available.max_compute_workgroup_size_x, 256),
        ("workgroups in a row", available.max_compute_workgroups_per_dimension, 65535),
    ];
    for (what, has, needed) in needs {
        if has < needed {
            return Err(Error::Unsupported(format!("{name} offers shaders {has} {what}: {needed} are needed")));
        }
    }
    Ok(wgpu::Limits {
        max_storage_buffer_binding_size: available.max_storage_buffer_binding_size,
        max_buffer_size: available.max_buffer_size,
        ..promised.or_worse_values_from(available)
    })
}

/// The first thing that went wrong; a lost device stays lost.
#[derive(Clone, Default)]
struct Faults(Arc<Mutex<Fault>>);

#[derive(Default)]
enum Fault {
    #[default]
    None,
    Once(Error),
    Lost(Error),
}

impl Faults {
    fn watch(device: &wgpu::Device, name: &str) -> Faults {
        let faults = Faults::default();
        let (on_error, on_loss) = (faults.clone(), faults.clone());
        let (error_name, loss_name) = (name.to_owned(), name.to_owned());
        device.on_uncaptured_error(Arc::new(move |error| {
            let text = format!("{error_name}: {}", one_line(&error));
            on_error.note(Fault::Once(match error {
                wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory(text),
                _ => Error::Device(text),
            }));
        }));
        device.set_device_lost_callback(move |reason, message| {
            // A device that is closed in order is not lost.
            if reason != wgpu::DeviceLostReason::Destroyed {
                let text = format!("{loss_name} was lost: {}", squeeze(&message));
                on_loss.note(Fault::Lost(Error::Device(text)));
            }
        });
        faults
    }

    fn note(&self, fault: Fault) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*slot, Fault::None) || matches!(fault, Fault::Lost(_)) {
            *slot = fault;
        }
    }

    fn take(&self) -> Option<Error> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *slot) {
            Fault::None => None,
            Fault::Once(error) => Some(error),
            Fault::Lost(error) => {
                *slot = Fault::Lost(error.clone());
                Some(error)
            }
        }
    }
}

/// An error with its causes on one line.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = squeeze(&error.to_string());
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = squeeze(&error.to_string());
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_told_once_and_a_loss_always() {
        let faults = Faults::default();
        assert_eq!(faults.take(), None);
        faults.note(Fault::Once(Error::OutOfMemory("first".into())));
        faults.note(Fault::Once(Error::Device("second".into())));
        assert_eq!(faults.take(), Some(Error::OutOfMemory("first".into())));
        assert_eq!(faults.take(), None);
        faults.note(Fault::Lost(Error::Device("gone".into())));
        faults.note(Fault::Once(Error::Device("later".into())));
        assert_eq!(faults.take(), faults.take());
        assert_eq!(faults.take(), Some(Error::Device("gone".into())));
    }

    #[test]
    fn a_device_without_what_shaders_need_is_refused_in_one_line() {
        let small = wgpu::Limits { max_compute_workgroup_storage_size: 8192, ..wgpu::Limits::default() };
        let error = limits("Toy GPU", &small).unwrap_err().to_string();
        assert_eq!(error, "Toy GPU offers shaders 8192 bytes of workgroup memory: 16384 are needed");
        assert!(limits("WebGPU", &wgpu::Limits::default()).is_ok());
    }
}
