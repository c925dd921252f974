//! A GPU through the CUDA driver, which is looked for when the program runs.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use trine_backend::{Error, Result, find_device};
use trine_kernels::{Cache, Compiler, Kernel as Source};

use super::{Driver, Facts, Kernel, LOWEST, Launch, Prepared, Sequence, Transfer};

/// One GPU, in its primary context, with one stream.
pub(crate) struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    facts: Facts,
    compiler: Compiler,
    kernels: Mutex<HashMap<Source, Loaded>>,
}

/// A kernel with the module that it is in.
struct Loaded {
    module: usize,
    function: Kernel,
}

// SAFETY: contexts, streams, modules and functions are handles that any thread may use; the context is made current at
// the beginning of each call, and calls on the stream are ordered by the driver.
unsafe impl Send for Cuda {}
// SAFETY: as above; what is changed on our side is behind a mutex.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens the GPU that `device` names: its number, or a part of its name; the first without it. `serial`: launches go
    /// one by one.
    pub(crate) fn open(device: Option<&str>, serial: bool) -> Result<Cuda> {
        // SAFETY: it loads the driver's library by its usual names and looks at nothing in it.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Unsupported(
                "there is no CUDA driver (libcuda.so.1): install NVIDIA's driver, or on a Jetson use JetPack's image"
                    .into(),
            ));
        }
        result::init().map_err(|error| failed("starting CUDA", error))?;
        let ordinal = choose(device)?;
        let device = result::device::get(ordinal).map_err(|error| failed("opening the GPU", error))?;
        let facts = facts(device).map_err(|error| failed("asking the GPU what it is", error))?;
        let facts = Facts { serial, ..facts };
        if facts.capability < LOWEST {
            return Err(Error::Unsupported(format!(
                "{} has compute capability {}.{}: cuda-orin needs {}.{} or more (Ampere), use the wgpu backend",
                facts.name,
                facts.capability / 10,
                facts.capability % 10,
                LOWEST / 10,
                LOWEST % 10
            )));
        }
        let compiler = Compiler::open(Cache::of_user())?;
        // SAFETY: the device is there; the context is released when the backend is dropped.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|error| failed("taking the GPU", error))?;
        // SAFETY: the context was just made.
        unsafe { result::ctx::set_current(context) }.map_err(|error| failed("taking the GPU", error))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|error| failed("making a stream", error))?;
        Ok(Cuda { device, context, stream, facts, compiler, kernels: Mutex::default() })
    }

    /// Makes the context current: each call may come from another thread.
    fn current(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| failed("taking the GPU", error))
    }

    /// Starts a launch on the stream, or adds it to the capture that is going on.
    fn launch(&self, launch: &Launch, overlap: bool) -> Result<()> {
        let mut arguments = [launch.arguments.as_ptr().cast_mut().cast::<c_void>()];
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.extent.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.extent.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: self.stream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(overlap && self.facts.overlaps()),
        };
        let function = launch.kernel.handle as sys::CUfunction;
        // SAFETY: the function's module is never unloaded; the planner gives each kernel the arguments that its
        // parameters are, and they are copied before this returns.
        unsafe {
            sys::cuLaunchKernelEx(&config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
                .result()
                .map_err(|error| failed(&format!("starting the kernel {}", launch.kernel.name), error))
        }
    }

    fn transfer_to_host(&self, transfer: &Transfer) -> Result<()> {
        let Transfer { host, device, bytes } = *transfer;
        // SAFETY: the host's bytes are from `allocate_host`, and live as long as the sequence that holds the transfer;
        // nobody looks at them until the stream has been waited for.
        let to = unsafe { std::slice::from_raw_parts_mut(host as *mut u8, bytes) };
        // SAFETY: the device's bytes are those of a piece that the sequence's owner holds.
        unsafe { result::memcpy_dtoh_async(to, device, self.stream) }
            .map_err(|error| failed("a copy from the GPU", error))
    }

    fn enqueue(&self, sequence: &Sequence, overlap: bool) -> Result<()> {
        for (at, launch) in sequence.launches.iter().enumerate() {
            // The first comes after whatever was before, which must have ended.
            self.launch(launch, overlap && at > 0)?;
        }
        sequence.fetch.iter().try_for_each(|transfer| self.transfer_to_host(transfer))
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Nothing can be done about an error here, and after a device's failure each of these calls returns it.
        let _ = self.current();
        // SAFETY: what was made in `open` and `kernel`, once each, after the last use.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let kernels = self.kernels.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
            for loaded in kernels.values() {
                let _ = result::module::unload(loaded.module as sys::CUmodule);
            }
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

impl Driver for Cuda {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn compiler(&self) -> String {
        self.compiler.name()
    }

    fn free(&self) -> Result<u64> {
        self.current()?;
        let (free, _) = result::mem_get_info().map_err(|error| failed("asking for free memory", error))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: u64) -> Result<u64> {
        self.current()?;
        let bytes = usize::try_from(bytes).map_err(|_| Error::OutOfMemory(format!("{bytes} bytes are too many")))?;
        // SAFETY: what it holds is written before it is read, or left as it is.
        unsafe { result::malloc_sync(bytes) }.map_err(|error| failed("asking for memory", error))
    }

    fn release(&self, address: u64) {
        if self.wait().is_ok() {
            // SAFETY: an address of `allocate`, given back once; nothing on the device uses it any more.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn allocate_host(&self, bytes: usize) -> Result<usize> {
        self.current()?;
        // SAFETY: zeroed before anyone sees it.
        let address =
            unsafe { result::malloc_host(bytes, 0) }.map_err(|error| failed("asking for host memory", error))?;
        // SAFETY: `bytes` long, and nobody else's.
        unsafe { std::ptr::write_bytes(address.cast::<u8>(), 0, bytes) };
        Ok(address as usize)
    }

    fn release_host(&self, address: usize) {
        if self.wait().is_ok() {
            // SAFETY: an address of `allocate_host`, given back once; no copy is under way.
            let _ = unsafe { result::free_host(address as *mut c_void) };
        }
    }

    fn zero(&self, address: u64, bytes: u64) -> Result<()> {
        self.current()?;
        // SAFETY: the caller's piece has so many bytes.
        unsafe { result::memset_d8_async(address, 0, bytes as usize, self.stream) }
            .map_err(|error| failed("clearing memory", error))
    }

    fn send(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.current()?;
        // SAFETY: the caller's piece has so many bytes; the copy is over before `bytes` may go.
        unsafe { result::memcpy_htod_async(address, bytes, self.stream) }
            .map_err(|error| failed("a copy to the GPU", error))?;
        self.wait()
    }

    fn kernel(&self, source: &Source) -> Result<Kernel> {
        self.current()?;
        let mut kernels = self.kernels.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(kernel) = kernels.get(source) {
            return Ok(kernel.function.clone());
        }
        let name = source.file;
        let image = self.compiler.machine_code(source, self.facts.capability)?;
        // SAFETY: the image is a whole module: the driver checks it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(|error| failed(&format!("loading the kernel {name}"), error))?;
        let symbol =
            std::ffi::CString::new(name).map_err(|_| Error::Device(format!("'{name}' is no kernel's name")))?;
        // SAFETY: the module is loaded, and stays so.
        let function = unsafe { result::module::get_function(module, symbol) }
            .map_err(|error| failed(&format!("looking for the kernel {name}"), error))?;
        let function = Kernel::new(name, function as usize);
        kernels.insert(source.clone(), Loaded { module: module as usize, function: function.clone() });
        Ok(function)
    }

    fn start(&self, sequence: &Sequence) -> Result<()> {
        self.current()?;
        self.enqueue(sequence, false)
    }

    fn prepare(self: std::sync::Arc<Self>, sequence: &Sequence, overlap: bool) -> Result<Box<dyn Prepared>> {
        self.current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is ours; a failed launch still ends the capture below.
        unsafe { result::stream::begin_capture(self.stream, mode) }
            .map_err(|error| failed("recording a graph", error))?;
        let started = self.enqueue(sequence, overlap);
        // SAFETY: a capture is going on.
        let graph = unsafe { result::stream::end_capture(self.stream) };
        started?;
        let graph = graph.map_err(|error| failed("recording a graph", error))?;
        // SAFETY: the graph was just made; it is not needed once it is instantiated.
        let executable = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: as above.
        let _ = unsafe { result::graph::destroy(graph) };
        let executable = executable.map_err(|error| failed("making a graph", error))?;
        Ok(Box::new(Graph { cuda: self, executable }))
    }

    fn time(&self, sequence: &Sequence) -> Result<Vec<f64>> {
        self.current()?;
        let event = || {
            result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
                .map_err(|error| failed("making an event", error))
        };
        let events = (0..=sequence.launches.len()).map(|_| event()).collect::<Result<Vec<_>>>()?;
        // SAFETY: the events are destroyed below.
        let record = |at: usize| unsafe { result::event::record(events[at], self.stream) };
        let timed = (|| {
            record(0).map_err(|error| failed("recording an event", error))?;
            for (at, launch) in sequence.launches.iter().enumerate() {
                self.launch(launch, false)?;
                record(at + 1).map_err(|error| failed("recording an event", error))?;
            }
            sequence.fetch.iter().try_for_each(|transfer| self.transfer_to_host(transfer))?;
            self.wait()?;
            // SAFETY: both events were recorded and have happened.
            let elapsed = |pair: &[sys::CUevent]| unsafe { result::event::elapsed(pair[0], pair[1]) };
            let times = events.windows(2).map(|pair| elapsed(pair).map(|milliseconds| 1e6 * f64::from(milliseconds)));
            times.collect::<std::result::Result<Vec<_>, _>>().map_err(|error| failed("reading an event", error))
        })();
        for event in events {
            // SAFETY: made above, and not used again.
            let _ = unsafe { result::event::destroy(event) };
        }
        timed
    }

    fn wait(&self) -> Result<()> {
        self.current()?;
        // SAFETY: the stream is ours.
        unsafe { result::stream::synchronize(self.stream) }.map_err(|error| failed("running on the GPU", error))
    }
}

/// A sequence as an executable graph.
struct Graph {
    cuda: std::sync::Arc<Cuda>,
    executable: sys::CUgraphExec,
}

// SAFETY: a graph may be used by any thread, one at a time; it is not shared.
unsafe impl Send for Graph {}

impl Prepared for Graph {
    fn run(&self) -> Result<()> {
        self.cuda.current()?;
        // SAFETY: the graph and the stream live as long as `self`.
        unsafe { result::graph::launch(self.executable, self.cuda.stream) }
            .map_err(|error| failed("starting a graph", error))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.cuda.current().is_ok() {
            // SAFETY: made once, destroyed once; the driver waits for a run that is under way.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}

/// The number of the GPU that `device` names; the first without a name.
fn choose(device: Option<&str>) -> Result<c_int> {
    let count = result::device::get_count().map_err(|error| failed("counting GPUs", error))?;
    let name = |ordinal| result::device::get(ordinal).and_then(result::device::get_name);
    let names: Vec<String> = (0..count).map(|ordinal| name(ordinal).unwrap_or_else(|_| "?".into())).collect();
    if names.is_empty() {
        return Err(Error::Unsupported(
            "the CUDA driver finds no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES".into(),
        ));
    }
    find_device("CUDA device", &names, device.unwrap_or("0")).map(|ordinal| ordinal as c_int)
}

fn facts(device: sys::CUdevice) -> std::result::Result<Facts, DriverError> {
    use sys::CUdevice_attribute as Attribute;
    // SAFETY: the device is one that the driver named.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) }.map(|value| value.max(0) as u32);
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let mut driver = 0;
    // SAFETY: it writes one integer.
    unsafe { sys::cuDriverGetVersion(&raw mut driver) }.result()?;
    Ok(Facts {
        name: result::device::get_name(device)?,
        capability: 10 * major + minor,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }? as u64,
        unified: attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
        cache: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        driver: driver.max(0) as u32,
        emulated: false,
        serial: false,
    })
}

/// An error of the driver in one line.
fn failed(what: &str, error: DriverError) -> Error {
    use sys::CUresult as Code;
    let text =
        error.error_string().map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned());
    match error.0 {
        Code::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory(format!("{what}: the GPU's memory is full")),
        Code::CUDA_ERROR_NO_DEVICE => Error::Unsupported(format!(
            "{what}: the CUDA driver finds no GPU ({text}): look at nvidia-smi and CUDA_VISIBLE_DEVICES"
        )),
        Code::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => Error::Unsupported(format!(
            "{what}: the CUDA driver and its kernel module differ ({text}): restart the machine after a driver's update"
        )),
        Code::CUDA_ERROR_NO_BINARY_FOR_GPU
        | Code::CUDA_ERROR_INVALID_IMAGE
        | Code::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => Error::Unsupported(format!(
            "{what}: {text}: the compiler of kernels is newer than the driver, use one of the driver's CUDA version (TRINE_NVRTC)"
        )),
        _ => Error::Device(format!("{what} failed: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_says_what_is_missing() {
        // SAFETY: it looks for a library.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        let line = Cuda::open(None, false).err().expect("no driver").to_string();
        assert!(line.contains("libcuda.so.1") && line.contains("JetPack") && !line.contains('\n'), "{line}");
    }
}
