//! Opening the devices and asking them, and trying what they say they can do.

use millpond::device::cuda::Driver;
use millpond::device::{
    CudaDevice, Device, DeviceError, HandleProperties, HostDevice, Location, ShareKind,
};

use super::machine::{kernel_module, machine};
use super::probe::probe;
use super::{
    Ability, DeviceFacts, DriverFacts, GpuFacts, HandleTypes, Peer, Report, Unusable, advice,
};
use crate::device::DeviceName;

// Attributes, by their numbers in the driver's header (`CU_DEVICE_ATTRIBUTE_…`).
const MULTIPROCESSOR_COUNT: i32 = 16;
const INTEGRATED: i32 = 18;
const PCI_BUS_ID: i32 = 33;
const PCI_DEVICE_ID: i32 = 34;
const PCI_DOMAIN_ID: i32 = 50;
const COMPUTE_CAPABILITY_MAJOR: i32 = 75;
const COMPUTE_CAPABILITY_MINOR: i32 = 76;
const MEMORY_POOLS_SUPPORTED: i32 = 115;
const DMA_BUF_SUPPORTED: i32 = 124;
const MPS_ENABLED: i32 = 133;
const HOST_NUMA_ID: i32 = 134;

/// Finds out about one device, or about all: every GPU and the host device.
pub(crate) fn gather(wanted: Option<DeviceName>) -> Report {
    let mut report = Report {
        millpond: env!("CARGO_PKG_VERSION").to_owned(),
        driver: DriverFacts {
            kernel_module: kernel_module(),
            ..DriverFacts::default()
        },
        machine: machine(),
        devices: Vec::new(),
        unusable: Vec::new(),
        missing: Vec::new(),
    };
    gather_gpus(&mut report, wanted);
    if matches!(wanted, None | Some(DeviceName::Host)) {
        let facts = HostDevice::new(HostDevice::default_memory())
            .and_then(|device| facts_of(&device, DeviceName::Host, 0));
        report.add(DeviceName::Host, facts);
    }
    advice::advise(&mut report);
    report
}

fn gather_gpus(report: &mut Report, wanted: Option<DeviceName>) {
    let loaded = Driver::load().and_then(|driver| Ok((driver.device_count()?, driver)));
    let (count, driver) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            if let Some(wanted @ DeviceName::Cuda(_)) = wanted {
                report.add(wanted, Err(error.clone()));
            }
            report.driver.problem = Some(error.to_string());
            return;
        }
    };
    let version = driver.version();
    let names = driver.missing_functions().iter();
    report.driver.library = Some(driver.library().to_owned());
    report.driver.cuda_version = Some(format!("{}.{}", version / 1000, version % 1000 / 10));
    report.driver.missing_functions = names.map(|&name| name.to_owned()).collect();
    let ordinals = match wanted {
        None => 0..count,
        Some(DeviceName::Cuda(ordinal)) => ordinal..ordinal.saturating_add(1),
        Some(_) => 0..0,
    };
    for ordinal in ordinals {
        let name = DeviceName::Cuda(ordinal);
        let facts = CudaDevice::open_with(driver.clone(), ordinal).and_then(|device| {
            let node = u32::try_from(device.attribute(HOST_NUMA_ID)).unwrap_or(0);
            let mut facts = facts_of(&device, name, node)?;
            facts.gpu = Some(gpu_facts(&device, count)?);
            Ok(facts)
        });
        report.add(name, facts);
    }
}

impl Report {
    fn add(&mut self, device: DeviceName, facts: Result<DeviceFacts, DeviceError>) {
        match facts {
            Ok(facts) => self.devices.push(facts),
            Err(error) => self.unusable.push(Unusable {
                device: device.to_string(),
                problem: error.to_string(),
            }),
        }
    }
}

/// What every device can be asked. Host memory is tried on NUMA node `node`.
fn facts_of(device: &dyn Device, name: DeviceName, node: u32) -> Result<DeviceFacts, DeviceError> {
    let capabilities = device.capabilities();
    let memory = device.memory_info()?;
    let plain = HandleProperties::default();
    let share = |offered, kind| {
        let share = Some(kind);
        ability(device, offered, HandleProperties { share, ..plain })
    };
    let location = Location::HostNuma(node);
    Ok(DeviceFacts {
        device: name.to_string(),
        name: capabilities.name.clone(),
        memory_bytes: memory.total,
        free_bytes: memory.free,
        granularity_bytes: capabilities.granularity,
        mapping: capabilities.mapping,
        handle_types: HandleTypes {
            posix_fd: share(capabilities.share_posix_fd, ShareKind::PosixFd),
            fabric: share(capabilities.share_fabric, ShareKind::Fabric),
        },
        rdma: ability(
            device,
            capabilities.rdma,
            HandleProperties {
                rdma: true,
                ..plain
            },
        ),
        host_numa: ability(
            device,
            capabilities.host_numa,
            HandleProperties { location, ..plain },
        ),
        gpu: None,
        probe: probe(device),
        pool: Vec::new(),
    })
}

/// Creates the smallest such handle, exports it if it is to be shared, and gives it back.
fn ability(device: &dyn Device, offered: bool, properties: HandleProperties) -> Ability {
    let try_it = || -> Result<(), DeviceError> {
        let handle = device.create(device.capabilities().granularity, properties)?;
        let exported = match properties.share {
            Some(kind) => device.export(handle, kind).map(drop),
            None => Ok(()),
        };
        device.release(handle)?;
        exported
    };
    let problem = if offered {
        try_it().err().map(|error| error.to_string())
    } else {
        None
    };
    Ability {
        offered,
        works: offered && problem.is_none(),
        problem,
    }
}

fn gpu_facts(device: &CudaDevice, count: u32) -> Result<GpuFacts, DeviceError> {
    let own = device.capabilities().ordinal;
    let can = |attribute| device.attribute(attribute) != 0;
    let peers = (0..count).filter(|&peer| peer != own).map(|peer| {
        Ok(Peer {
            device: DeviceName::Cuda(peer).to_string(),
            access: device.can_access_peer(peer)?,
        })
    });
    Ok(GpuFacts {
        compute_capability: format!(
            "{}.{}",
            device.attribute(COMPUTE_CAPABILITY_MAJOR),
            device.attribute(COMPUTE_CAPABILITY_MINOR)
        ),
        pci: format!(
            "{:04x}:{:02x}:{:02x}.0",
            device.attribute(PCI_DOMAIN_ID),
            device.attribute(PCI_BUS_ID),
            device.attribute(PCI_DEVICE_ID)
        ),
        multiprocessors: device.attribute(MULTIPROCESSOR_COUNT).unsigned_abs(),
        // The driver's name of an instance has its profile at the end: "… MIG 1g.18gb".
        mig: device.capabilities().name.contains(" MIG "),
        mps: can(MPS_ENABLED),
        integrated: can(INTEGRATED),
        driver_pools: can(MEMORY_POOLS_SUPPORTED),
        dma_buf: can(DMA_BUF_SUPPORTED),
        numa_node: u32::try_from(device.attribute(HOST_NUMA_ID)).ok(),
        peers: peers.collect::<Result<_, DeviceError>>()?,
    })
}

#[cfg(test)]
mod tests {
    use millpond::device::SimDevice;

    use super::*;

    #[test]
    fn what_a_device_offers_is_tried_and_given_back() {
        let device = SimDevice::new();
        let facts = facts_of(&device, DeviceName::Sim, 0).unwrap();
        let capabilities = device.capabilities();
        let said = [
            (&facts.handle_types.posix_fd, capabilities.share_posix_fd),
            (&facts.handle_types.fabric, capabilities.share_fabric),
            (&facts.rdma, capabilities.rdma),
            (&facts.host_numa, capabilities.host_numa),
        ];
        for (ability, offered) in said {
            assert_eq!(ability.offered, offered);
            assert_eq!(ability.works, offered && ability.problem.is_none());
        }
        let memory = device.memory_info().unwrap();
        assert_eq!(memory.free, memory.total);
    }

    #[test]
    fn what_is_offered_and_does_not_work_says_why() {
        let device = HostDevice::new(4 << 20).unwrap();
        let rdma = HandleProperties {
            rdma: true,
            ..HandleProperties::default()
        };
        let found = ability(&device, true, rdma);
        assert!(found.offered && !found.works);
        assert!(found.problem.unwrap().contains("not supported"));
        assert_eq!(
            ability(&device, false, rdma),
            Ability {
                offered: false,
                works: false,
                problem: None
            }
        );
    }
}
