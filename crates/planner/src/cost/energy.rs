//! Energy of a pass, where profiles have power figures.

use motley_cluster::{DeviceProfile, Joules, Seconds};

use super::GpuShare;

/// Energy of one device over a pass: idle power throughout, the difference while it works.
/// `None` without power figures.
#[must_use]
pub fn pass_energy(device: &DeviceProfile, busy: GpuShare, pass: Seconds) -> Option<Joules> {
    let power = device.power.as_ref()?;
    let idle = power.idle_w.value();
    // The GPU's figure is on top of a machine that waits for it.
    let cpu = (power.cpu_busy_w.value() - idle).max(0.0) * busy.cpu.value();
    let gpu = power.gpu_busy_w.value() * busy.gpu.value();
    Joules::new(idle * pass.value() + cpu + gpu).ok()
}
