//! The GPUs that there are, and the choice of one.

use std::sync::OnceLock;

use trine_backend::{Error, Result, find_device};

/// What can be set when the backend is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The device to use: its number in [`adapters`], or a part of its name. Without it the fastest kind that
    /// there is: a discrete GPU, then an integrated one, then software.
    pub device: Option<String>,
    /// Do without subgroup functions although the device has them.
    pub without_subgroups: bool,
    /// Bytes of the largest buffer binding, if less than the device's own limit: larger matrices are split.
    pub binding_limit: Option<u64>,
    /// Keep times of each op: see [`Wgpu::op_times`](crate::Wgpu::op_times). Costs speed.
    pub profile: bool,
}

/// A GPU as `trine doctor` shows it.
#[derive(Clone, Debug)]
pub struct AdapterFacts {
    /// Its own name.
    pub name: String,
    /// Discrete, integrated, virtual, software or other.
    pub kind: &'static str,
    /// Vulkan, Metal or DX12.
    pub api: String,
    /// The driver and its version.
    pub driver: String,
    /// Bytes of the largest buffer that a shader can use: larger matrices are split.
    pub binding_limit: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Whether shaders use subgroup functions on it.
    pub subgroups: bool,
    /// Whether it is a program that imitates a GPU: correct and slow.
    pub software: bool,
}

/// Every GPU that Vulkan, Metal or DX12 offer, in the order of the numbers that [`Options::device`] takes.
pub fn adapters() -> Vec<AdapterFacts> {
    enumerate().iter().map(facts).collect()
}

pub(crate) fn enumerate() -> Vec<wgpu::Adapter> {
    pollster::block_on(instance().enumerate_adapters(wgpu::Backends::PRIMARY))
}

/// The one instance of this process. The last one that goes takes the driver with it out of memory, and after some dozens
/// of times NVIDIA's can't be loaded again.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::PRIMARY;
        wgpu::Instance::new(descriptor)
    })
}

pub(crate) fn facts(adapter: &wgpu::Adapter) -> AdapterFacts {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    AdapterFacts {
        name: info.name.clone(),
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "software",
            wgpu::DeviceType::Other => "other",
        },
        api: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        binding_limit: limits.max_storage_buffer_binding_size,
        workgroup_memory: limits.max_compute_workgroup_storage_size,
        subgroups: adapter.features().contains(wgpu::Features::SUBGROUP),
        software: info.device_type == wgpu::DeviceType::Cpu,
    }
}

/// The adapter that `device` names, or the best.
pub(crate) fn choose(device: Option<&str>) -> Result<wgpu::Adapter> {
    let mut adapters = enumerate();
    if adapters.is_empty() {
        return Err(Error::Unsupported(
            "no GPU was found through Vulkan, Metal or DX12: install its driver (on Debian, mesa-vulkan-drivers)"
                .into(),
        ));
    }
    let names: Vec<String> = adapters.iter().map(|adapter| adapter.get_info().name).collect();
    let index = match device {
        Some(device) => find_device("GPU", &names, device)?,
        None => best(&adapters),
    };
    Ok(adapters.swap_remove(index))
}

fn best(adapters: &[wgpu::Adapter]) -> usize {
    let rank = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    (0..adapters.len()).min_by_key(|&at| rank(&adapters[at])).unwrap_or(0)
}
